-- The queue from any language: functions of the core, version 1.
--
-- The migration runs this file with the schema of the tables in place of "public". Functions find
-- their names in pg_catalog only, so objects of callers replace nothing. Each sets that path itself:
-- PL/pgSQL resolves its types at a session's first call, which may be a caller's own. Instants are
-- milliseconds since the epoch, floored, by the database's clock. Statements follow
-- delayed_queue/queue/store. Errors: QD001 invalid message, QD002 payload not encodable, QD003
-- invalid configuration, QD004 batch closed.
-- PL/pgSQL prepares each expression anew in each transaction, so a plain offer evaluates few.

-- Return the kind of a queue: a name with a bar is the kind itself. Refuse bad names and keys.
CREATE OR REPLACE FUNCTION public.delayed_queue_kind(queue text, key text DEFAULT '-') RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind CONSTANT text := CASE WHEN queue LIKE '%|%' THEN queue ELSE queue || '|json' END;
BEGIN
    IF queue > '' AND length(kind) <= 100 AND length(key) BETWEEN 1 AND 200 THEN
        RETURN kind;
    END IF;
    RAISE USING ERRCODE = 'QD001', MESSAGE = CASE
        WHEN COALESCE(queue, '') = '' THEN 'A queue needs a name: a non-empty string.'
        WHEN length(kind) <= 100 THEN format('A key has 1 to 200 characters; this one has %s: %L.',
            COALESCE(length(key), 0), left(key, 40))
        ELSE format('The kind %L has %s characters; at most 100 fit (queue name, a bar, codec name)'
            '. Shorten the queue''s name.', kind, length(kind))
    END;
END $$;

-- Return when a message is due: at an instant, after a delay, or now.
CREATE OR REPLACE FUNCTION public.delayed_queue_due_at(
    now bigint, schedule_at timestamptz, delay interval
) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due_at CONSTANT numeric := CASE
        WHEN schedule_at IS NOT NULL THEN floor(extract(epoch FROM schedule_at) * 1000)
        ELSE now + COALESCE(floor(extract(epoch FROM delay) * 1000), 0)
    END;
BEGIN
    IF schedule_at IS NOT NULL AND delay IS NOT NULL THEN
        RAISE 'Give schedule_at or delay, not both.' USING ERRCODE = 'QD001';
    ELSIF due_at BETWEEN -62135596800000 AND 253402300799999 THEN
        RETURN due_at;
    END IF;
    RAISE USING ERRCODE = 'QD001', MESSAGE = COALESCE(
        'schedule_at ' || schedule_at || ' is outside the years 1 to 9999 in UTC.',
        'delay ' || delay || ' leads outside the years 1 to 9999.'
    );
END $$;

-- Return when a lease of this length ends.
CREATE OR REPLACE FUNCTION public.delayed_queue_lease(now bigint, lease interval) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF extract(epoch FROM lease) BETWEEN 0.001 AND 3650 * 86400 THEN
        RETURN now + floor(extract(epoch FROM lease) * 1000);
    END IF;
    RAISE 'The lease duration is %. It must be an interval from 1 ms to 3650 days.',
        COALESCE(lease::text, 'NULL') USING ERRCODE = 'QD003';
END $$;

-- Return an instant, clamped to the years 1 to 9999.
CREATE OR REPLACE FUNCTION public.delayed_queue_instant(milliseconds bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT (
        timestamp 'epoch' + (ms / 86400000)::integer * interval '1 day'
        + ms % 86400000 * interval '1 millisecond'
    ) AT TIME ZONE 'UTC'
    FROM LEAST(GREATEST(milliseconds, -62135596800000), 253402300799999) AS ms
    WHERE milliseconds IS NOT NULL
$$;

-- Return JSON as the Python codec writes it: keys in the order of their code points, no blanks.
-- Python reads no integer of more than 4,300 digits, and no other number beyond a double. jsonb
-- keeps no exponents: 200 zeros at the end show that there was one.
CREATE OR REPLACE FUNCTION public.delayed_queue_json(value jsonb, depth integer DEFAULT 0)
RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    plain CONSTANT text := value;
BEGIN
    IF value IS NULL OR depth > 200 OR depth = 0 AND length(plain) > 308 AND jsonb_path_exists(
        value, '$.** ? (@.type() == "number").abs() ? (@ >= 1e4300
            || @ >= 1.7976931348623158e308 && (@ % 1e200 == 0 || @.floor() != @))'
    ) THEN
        RAISE USING ERRCODE = 'QD002', MESSAGE = 'The json codec cannot encode ' || CASE
            WHEN value IS NULL THEN 'SQL NULL; JSON null is ''null''::jsonb.'
            WHEN depth > 200 THEN 'more than 200 levels.'
            ELSE 'a number that Python cannot read.'
        END;
    ELSIF plain LIKE '{_%}' THEN
        RETURN (
            SELECT '{' || string_agg(
                to_json(name)::text || ':' || CASE
                    WHEN jsonb_typeof(item) IN ('object', 'array')
                    THEN public.delayed_queue_json(item, depth + 1) ELSE item::text
                END, ',' ORDER BY name COLLATE "C"
            ) || '}'
            FROM jsonb_each(value) AS each (name, item)
        );
    ELSIF plain LIKE '[%' AND plain ~ '.["[{]' THEN
        RETURN (
            SELECT '[' || string_agg(public.delayed_queue_json(item, depth + 1), ',' ORDER BY place)
                || ']'
            FROM jsonb_array_elements(value) WITH ORDINALITY AS each (item, place)
        );
    END IF;
    RETURN CASE WHEN plain LIKE '[%' THEN replace(plain, ', ', ',') ELSE plain END;
END $$;

-- Offer a message, or a checked one by its kind and stored bytes. One statement gives the outcome:
-- xmax = 0 for a new row, no row if nothing changed. The lock on an open batch, until the commit,
-- keeps it from closing; a member of another batch leaves that as dropped. Listeners are notified
-- if it is due within the default poll interval, and the holder of a lease that ends; not while
-- notifications pile up, which could fail the caller's transaction.
-- Reads: delayed_queue__PKeyPlusKindUniqueIndex.
CREATE OR REPLACE FUNCTION public.delayed_queue_put(
    id bigint, queue text, key text, payload jsonb, schedule_at timestamptz, delay interval,
    can_update boolean, headers jsonb, "group" text, expires_at timestamptz, batch bigint,
    stored_payload bytea DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    kind CONSTANT text := CASE
        WHEN stored_payload IS NULL THEN public.delayed_queue_kind(queue, key) ELSE queue
    END;
    body CONSTANT bytea := COALESCE(
        stored_payload, convert_to(public.delayed_queue_json(payload), 'UTF8')
    );
    now CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    due_at bigint := now;
    expiry bigint;
    header text;
    outcome text;
    member_of bigint;
BEGIN
    IF schedule_at IS NOT NULL OR delay IS NOT NULL THEN
        due_at := public.delayed_queue_due_at(now, schedule_at, delay);
    END IF;
    IF num_nonnulls(headers, "group", expires_at) > 0 THEN
        header := CASE WHEN headers <> 'null' THEN public.delayed_queue_json(headers) END;
        expiry := CASE
            WHEN expires_at IS NOT NULL THEN public.delayed_queue_due_at(now, expires_at, NULL)
        END;
        outcome := CASE
            WHEN stored_payload IS NOT NULL THEN NULL
            WHEN expiry <= due_at
            THEN format('The message would expire at or before its due time, %s: %s.',
                public.delayed_queue_instant(due_at), expires_at)
            WHEN length("group") NOT BETWEEN 1 AND 100
            THEN format('A group has 1 to 100 characters; this one has %s: %L.',
                length("group"), left("group", 40))
            WHEN header NOT LIKE '{%'
            THEN format('headers must map names to JSON values, not %s.', left(header, 40))
            WHEN length(headers::text) > 65536
            THEN format('Headers have at most 65536 characters as JSON; these have %s.',
                length(headers::text))
        END;
        IF outcome IS NOT NULL THEN
            RAISE USING ERRCODE = 'QD001', MESSAGE = outcome;
        END IF;
    END IF;
    IF batch IS NOT NULL THEN
        PERFORM FROM public.delayed_queue_batch AS joined
        WHERE joined.id = batch AND "closedAt" IS NULL FOR KEY SHARE;
        IF NOT FOUND THEN
            RAISE 'The batch % is closed or unknown; nothing was offered.', batch
                USING ERRCODE = 'QD004';
        END IF;
    END IF;
    INSERT INTO public.delayed_queue AS stored (
        id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group", "expiresAt", "batchId"
    )
    VALUES (
        COALESCE(id, nextval('public.delayed_queue_id_seq')), key, kind, body,
        due_at, due_at, now, NULLIF(headers, 'null'), now, "group", expiry, batch
    )
    ON CONFLICT ("pKey", "pKind") DO UPDATE
    SET payload = EXCLUDED.payload,
        "scheduledAt" = EXCLUDED."scheduledAt",
        "scheduledAtInitially" = EXCLUDED."scheduledAtInitially",
        "createdAt" = EXCLUDED."createdAt",
        headers = EXCLUDED.headers,
        "group" = EXCLUDED."group",
        "expiresAt" = EXCLUDED."expiresAt",
        "lockUuid" = NULLIF(CASE
            WHEN stored."lockUuid" IS NOT NULL AND pg_notification_queue_usage() < 0.5
            THEN pg_notify('delayed_queue_leases', stored."lockUuid")::text
        END, ''),
        "dueAt" = NULL,
        attempts = 0,
        "firstError" = NULL,
        "lastError" = NULL,
        "versionAt" = EXCLUDED."createdAt",
        "batchId" = COALESCE(stored."batchId", EXCLUDED."batchId")
    WHERE can_update IS NOT FALSE
        AND (
            stored.payload <> EXCLUDED.payload
            OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
            OR EXCLUDED."expiresAt" IS DISTINCT FROM CASE
                WHEN stored."versionAt" <> stored."createdAt" THEN NULL ELSE stored."expiresAt"
            END
        )
    RETURNING CASE WHEN stored.xmax = 0 THEN 'created' ELSE 'updated' END, "batchId"
    INTO outcome, member_of;
    IF outcome IS NULL THEN
        RETURN 'ignored';
    ELSIF member_of <> batch THEN
        UPDATE public.delayed_queue SET "batchId" = batch WHERE "pKey" = key AND "pKind" = kind;
        PERFORM public.delayed_queue_leave(ARRAY[member_of], 'dropped');
    END IF;
    IF due_at <= now + 3000 AND pg_notification_queue_usage() < 0.5 THEN
        header := pg_notify('delayed_queue_' || md5(kind), '');
    END IF;
    RETURN outcome;
END $$;

-- Count members that left their batches, and offer "then" of closed batches without members, as
-- queue/store/finishing.py does. The locks on the batches, until the commit, make transactions that
-- remove the last members follow each other; the statements behind them see what was committed.
-- Reads: delayed_queue_batch_pkey, message_of_batch, dead_letter_of_batch.
CREATE OR REPLACE FUNCTION public.delayed_queue_leave(batches bigint[], outcome text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    now CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    batch record;
BEGIN
    PERFORM FROM public.delayed_queue_batch
    WHERE id = ANY (batches) ORDER BY id FOR NO KEY UPDATE;
    UPDATE public.delayed_queue_batch AS stored
    SET done = done + CASE outcome WHEN 'done' THEN number ELSE 0 END,
        dead = dead + CASE outcome WHEN 'dead' THEN number ELSE 0 END,
        dropped = dropped + CASE outcome WHEN 'dropped' THEN number ELSE 0 END,
        expired = expired + CASE outcome WHEN 'expired' THEN number ELSE 0 END
    FROM (SELECT id, count(*) AS number FROM unnest(batches) AS id GROUP BY id) AS gone
    WHERE stored.id = gone.id;
    FOR batch IN
        DELETE FROM public.delayed_queue_batch AS stored
        WHERE id = ANY (batches)
            AND "closedAt" IS NOT NULL
            AND (SELECT id FROM public.delayed_queue WHERE "batchId" = stored.id
                ORDER BY "batchId" DESC, id DESC LIMIT 1) IS NULL
            AND (SELECT id FROM public.delayed_queue_dead_letter WHERE "batchId" = stored.id
                ORDER BY "batchId" DESC, id DESC LIMIT 1) IS NULL
        RETURNING *, jsonb_build_object('batch', jsonb_build_object(
            'id', id, 'total', done + dead + dropped + expired, 'done', done, 'dead', dead,
            'dropped', dropped, 'expired', expired)) AS counts
    LOOP
        PERFORM public.delayed_queue_put(
            NULL, batch."thenKind", batch."thenKey", NULL,
            public.delayed_queue_instant(COALESCE(batch."thenScheduledAt", now)), NULL, true,
            COALESCE(batch."thenHeaders", '{}') || batch.counts, batch."thenGroup",
            public.delayed_queue_instant(batch."thenExpiresAt"), NULL, batch."thenPayload"
        );
    END LOOP;
END $$;

-- Store a message, or replace the one under its key if payload or schedule differ.
CREATE OR REPLACE FUNCTION public.delayed_queue_offer(
    queue text, key text, payload jsonb, schedule_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL, can_update boolean DEFAULT true, headers jsonb DEFAULT NULL,
    "group" text DEFAULT NULL, expires_at timestamptz DEFAULT NULL, batch bigint DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN public.delayed_queue_put(
        NULL, queue, key, payload, schedule_at, delay, can_update, headers, "group", expires_at, batch
    );
END $$;

-- Offer a JSON array of objects with the parameters of delayed_queue_offer; outcomes in its order.
-- Ids are drawn in that order, so equal schedules are delivered as they were offered. Rows are
-- written in the order of their keys, so two batches cannot deadlock.
CREATE OR REPLACE FUNCTION public.delayed_queue_offer_many(queue text, messages jsonb)
RETURNS TABLE (key text, outcome text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind CONSTANT text := public.delayed_queue_kind(queue);
    is_zoned CONSTANT text := ':[0-9]{2}.*(z|[+-][0-9]{2}(:?[0-9]{2})?)$';
    offered record;
    outcomes text[];
BEGIN
    IF jsonb_typeof(messages) IS DISTINCT FROM 'array' THEN
        RAISE 'A batch is a JSON array of messages, not %.',
            quote_nullable(left(messages::text, 40)) USING ERRCODE = 'QD001';
    END IF;
    FOR offered IN
        SELECT id, place, message
        FROM (
            SELECT nextval('public.delayed_queue_id_seq') AS id, place, message
            FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (message, place)
        ) AS numbered
        ORDER BY (message->>'key') COLLATE "C", place
    LOOP
        IF jsonb_typeof(offered.message) <> 'object'
            OR jsonb_typeof(offered.message->'key') IS DISTINCT FROM 'string'
            OR offered.message - ARRAY[
                'key', 'payload', 'schedule_at', 'delay', 'can_update', 'headers', 'group',
                'expires_at', 'batch'
            ] <> '{}'
            OR offered.message->>'schedule_at' !~* is_zoned
            OR offered.message->>'expires_at' !~* is_zoned
        THEN
            RAISE 'A message has a text as key, a payload, and may have schedule_at and %: %.',
                'expires_at with a time zone, delay, can_update, headers, group and batch; this is none',
                left(offered.message::text, 200) USING ERRCODE = 'QD001';
        END IF;
        outcomes[offered.place] := (
            SELECT public.delayed_queue_put(
                offered.id, kind, message.key, offered.message->'payload', schedule_at, delay,
                can_update, offered.message->'headers', "group", expires_at, batch
            )
            FROM jsonb_to_record(offered.message) AS message (
                key text, schedule_at timestamptz, delay interval, can_update boolean, "group" text,
                expires_at timestamptz, batch bigint
            )
        );
    END LOOP;
    RETURN QUERY
    SELECT message->>'key', outcomes[place]
    FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (message, place)
    ORDER BY place;
EXCEPTION WHEN data_exception THEN
    RAISE '%.', SQLERRM USING ERRCODE = 'QD001';
END $$;

-- Delete a message in any state; false if there is none. Its holder is notified.
-- Reads: delayed_queue__PKeyPlusKindUniqueIndex.
CREATE OR REPLACE FUNCTION public.delayed_queue_drop(queue text, key text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind CONSTANT text := public.delayed_queue_kind(queue, key);
    holder text;
    batch bigint;
BEGIN
    DELETE FROM public.delayed_queue WHERE "pKey" = key AND "pKind" = kind
    RETURNING "lockUuid", "batchId" INTO holder, batch;
    IF batch IS NOT NULL THEN
        PERFORM public.delayed_queue_leave(ARRAY[batch], 'dropped');
    END IF;
    IF holder IS NOT NULL AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('delayed_queue_leases', holder);
    END IF;
    RETURN FOUND;
END $$;

-- Return the JSON of a payload, or NULL and why it is none.
CREATE OR REPLACE FUNCTION public.delayed_queue_decode(data bytea, OUT body jsonb, OUT error text)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    body := convert_from(data, 'UTF8');
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    error := format('PayloadNotDecodable: The json codec cannot decode %s stored bytes: %s',
        length(data), SQLERRM);
END $$;

-- Return the message under a key without leasing it; its payload is NULL if it is not JSON.
-- Reads: delayed_queue__PKeyPlusKindUniqueIndex.
CREATE OR REPLACE FUNCTION public.delayed_queue_read(queue text, key text) RETURNS TABLE (
    id bigint, payload jsonb, state text, attempts integer, scheduled_at timestamptz,
    scheduled_at_initially timestamptz, created_at timestamptz, lease_id text, headers jsonb,
    last_error text, "group" text, expires_at timestamptz
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    now CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    kind CONSTANT text := public.delayed_queue_kind(queue, key);
BEGIN
    RETURN QUERY
    SELECT
        id, body,
        CASE
            WHEN "scheduledAt" <= now THEN 'due'
            WHEN "lockUuid" IS NULL THEN 'scheduled' ELSE 'leased'
        END,
        CASE WHEN is_old THEN 0 ELSE attempts END, public.delayed_queue_instant("scheduledAt"),
        public.delayed_queue_instant("scheduledAtInitially"),
        public.delayed_queue_instant("createdAt"), "lockUuid"::text,
        CASE WHEN NOT is_old THEN headers END, CASE WHEN NOT is_old THEN "lastError" END,
        "group"::text,
        CASE WHEN NOT is_old THEN public.delayed_queue_instant("expiresAt") END
    FROM public.delayed_queue
    CROSS JOIN LATERAL (SELECT COALESCE("versionAt" <> "createdAt", false) AS is_old) AS own
    CROSS JOIN LATERAL public.delayed_queue_decode(payload) AS decoded
    WHERE "pKey" = delayed_queue_read.key
        AND "pKind" = kind;
END $$;

-- Return the number of permits of a rate that are due, as delayed_queue/rates.py does.
CREATE OR REPLACE FUNCTION public.delayed_queue_permits(
    every float8, burst integer, spent_until float8, now bigint
) RETURNS integer
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN every IS NULL THEN 2147483647 ELSE GREATEST(LEAST(most, floor((
        now - LEAST(COALESCE(spent_until, 0), now + most * every) + (most - 1) * every
    ) / every) + 1), 0) END
    FROM COALESCE(burst, 1) AS most
$$;

-- Choose and lock messages of a queue with limits, within the same rules as a claim by group in
-- Python: the concurrency, rate, order, pause and dead letters of each group. Groups take turns by
-- their weights, or the most overdue message comes first. One such claim of a kind runs at a time,
-- and the statements behind its lock see each lease committed before. It keeps no position: it
-- starts at a random group, and reads ungrouped messages from the start and from a random instant.
-- Reads: limit_kind_group, dead_letter_of_group, delayed_queue__KindPlusScheduledAtIndex, the three
-- indexes of groups, the primary key.
CREATE OR REPLACE FUNCTION public.delayed_queue_deal(kind text, n integer) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_variable
DECLARE
    now bigint;
    rules record;
    free integer;
    since text COLLATE "C";
    plain bigint[];
    chosen bigint[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE 'The queue % has limits, and the transaction is at %: it does not see %', kind,
            current_setting('transaction_isolation'), 'what others have leased since it began. '
            'Poll outside of it, or at READ COMMITTED.' USING ERRCODE = 'QD003';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(kind, 7310600482201519));
    now := floor(extract(epoch FROM clock_timestamp()) * 1000);
    SELECT * INTO rules FROM public.delayed_queue_limit WHERE "pKind" = kind AND "group" = '';
    -- More is spent ahead only if the clock was set back.
    UPDATE public.delayed_queue_limit
    SET "spentUntil" = most
    FROM (
        SELECT "group" AS name, now + CASE
            WHEN "group" = '' THEN "queueInterval" * COALESCE("queueBurst", 1)
            ELSE COALESCE(interval, rules.interval) * COALESCE(burst, rules.burst, 1)
        END AS most
        FROM public.delayed_queue_limit WHERE "pKind" = kind
    ) AS rate
    WHERE "pKind" = kind AND "group" = name AND "spentUntil" > most;
    free := LEAST(n, public.delayed_queue_permits(
        rules."queueInterval", rules."queueBurst", rules."spentUntil", now));
    IF rules."pausedAt" IS NOT NULL OR free < 1 THEN
        RETURN '{}';
    END IF;
    SELECT
        array_agg(id ORDER BY "scheduledAt", id) FILTER (WHERE "group" IS NULL),
        (array_agg("group" ORDER BY random()) FILTER (WHERE "group" > ''))[1]
    INTO plain, since
    FROM (
        SELECT DISTINCT due.*
        FROM (
            SELECT "scheduledAt" AS at FROM public.delayed_queue
            WHERE "pKind" = kind AND "scheduledAt" <= now ORDER BY "scheduledAt", id LIMIT 1
        ) AS first
        CROSS JOIN unnest(ARRAY[0, random()]) AS part
        CROSS JOIN LATERAL (
            SELECT id, "scheduledAt", "group" FROM public.delayed_queue
            WHERE "pKind" = kind AND "scheduledAt" >= at + floor(part * (now - at))::bigint
                AND "scheduledAt" <= now
            ORDER BY "scheduledAt", id LIMIT 500
        ) AS due
    ) AS seen;
    -- Walk from group to group, once round. An expired lease keeps its slot for a late extension.
    chosen := ARRAY(
        WITH RECURSIVE walk (name, lap) AS (
            SELECT COALESCE(since, ''), 0
            UNION ALL
            SELECT COALESCE(next, ''), lap + (next IS NULL)::integer
            FROM walk
            CROSS JOIN LATERAL (SELECT LEAST(
                (SELECT "group" FROM public.delayed_queue
                WHERE "pKind" = kind AND "lockUuid" IS NULL AND "group" > name
                ORDER BY "group", "scheduledAt", id LIMIT 1),
                (SELECT "group" FROM public.delayed_queue
                WHERE "pKind" = kind AND "lockUuid" IS NOT NULL AND "group" > name
                ORDER BY "group", "scheduledAt", id LIMIT 1)
            ) AS next) AS step
            WHERE lap = 0 OR next < since
        ),
        share AS (
            SELECT name, COALESCE(own.weight, 1) AS weight, random() AS luck, ids, due
            FROM walk
            LEFT JOIN public.delayed_queue_limit AS own ON "pKind" = kind AND "group" = name
            CROSS JOIN LATERAL (
                SELECT count(*) AS held, count(*) FILTER (WHERE "scheduledAt" > now) AS live,
                    CASE
                        WHEN rules."isOrdered" THEN 1
                        ELSE COALESCE(own.concurrency, rules.concurrency, 2147483647)
                    END AS slots
                FROM public.delayed_queue
                WHERE "pKind" = kind AND "group" = name AND "lockUuid" IS NOT NULL
            ) AS lease
            CROSS JOIN LATERAL (
                SELECT
                    array_agg(id ORDER BY rank, "scheduledAt", id) AS ids,
                    array_agg("scheduledAt" ORDER BY rank, "scheduledAt", id) AS due
                FROM (
                    SELECT * FROM (
                        (SELECT id, "scheduledAt", 0 AS rank FROM public.delayed_queue
                        WHERE "pKind" = kind AND "group" = name AND "lockUuid" IS NOT NULL
                            AND ("group", "scheduledAt") <= (name, now)
                        ORDER BY "group", "scheduledAt", id
                        LIMIT GREATEST(slots - live, 0))
                        UNION ALL
                        (SELECT id, "scheduledAt", 1 FROM public.delayed_queue
                        WHERE "pKind" = kind AND "group" = name AND "lockUuid" IS NULL
                            AND "scheduledAt" > "scheduledAtInitially" AND rules."isOrdered"
                        ORDER BY "lockUuid", "scheduledAt", id
                        LIMIT GREATEST(slots - held, 0))
                        UNION ALL
                        (SELECT id, "scheduledAt", 2 FROM public.delayed_queue
                        WHERE "pKind" = kind AND "group" = name AND "lockUuid" IS NULL
                            AND ("group", "scheduledAt") <= (name, now)
                        ORDER BY "group", "scheduledAt", id
                        LIMIT LEAST(GREATEST(slots - held, 0), free))
                    ) AS found
                    ORDER BY rank, "scheduledAt", id
                    LIMIT LEAST(free, GREATEST(slots - live, 0), public.delayed_queue_permits(
                        COALESCE(own.interval, rules.interval), COALESCE(own.burst, rules.burst),
                        own."spentUntil", now))
                ) AS first
            ) AS message
            WHERE ids IS NOT NULL
                AND own."pausedAt" IS NULL
                AND NOT (rules."isOrdered" IS TRUE AND EXISTS (
                    SELECT FROM public.delayed_queue
                    WHERE "pKind" = kind AND "group" = name AND "lockUuid" IS NULL
                        AND "scheduledAt" > "scheduledAtInitially" AND "scheduledAt" > now
                ))
                AND NOT (rules."blocksOnDead" IS TRUE AND EXISTS (
                    SELECT FROM public.delayed_queue_dead_letter
                    WHERE "pKind" = kind AND "group" = name
                        AND "diedAt" > COALESCE(own."resumedAt", -9223372036854775808)
                ))
            LIMIT GREATEST(n, 100)
        ),
        picked AS MATERIALIZED (
            SELECT id, name
            FROM (
                SELECT id, name, (turn - 1) / weight AS round, luck, due_at
                FROM share
                CROSS JOIN LATERAL unnest(ids, due) WITH ORDINALITY AS item (id, due_at, turn)
                UNION ALL
                SELECT id, NULL, turn - 1, (SELECT random()), "scheduledAt"
                FROM unnest(plain[1:free]) WITH ORDINALITY AS item (id, turn)
                JOIN public.delayed_queue USING (id)
            ) AS dealt
            ORDER BY CASE WHEN rules."isFair" IS NOT FALSE THEN round END,
                CASE WHEN rules."isFair" IS NOT FALSE THEN luck END, due_at, id
            LIMIT free
        )
        SELECT locked.id
        FROM picked
        CROSS JOIN LATERAL (
            SELECT stored.id FROM public.delayed_queue AS stored
            WHERE stored.id = picked.id AND "group" IS NOT DISTINCT FROM name
                AND COALESCE("scheduledAt" <= now, false)
            FOR UPDATE SKIP LOCKED
        ) AS locked
    );
    INSERT INTO public.delayed_queue_limit ("pKind", "group", "spentUntil")
    SELECT kind, name, GREATEST(LEAST(spent, now + burst * every), now) + taken * every
    FROM (
        SELECT name, taken, COALESCE(own.interval, rules.interval) AS every,
            COALESCE(own.burst, rules.burst, 1) AS burst, COALESCE("spentUntil", 0) AS spent
        FROM (
            SELECT "group" AS name, count(*) AS taken FROM public.delayed_queue
            WHERE id = ANY (chosen) AND "group" IS NOT NULL GROUP BY name
        ) AS leased
        LEFT JOIN public.delayed_queue_limit AS own ON "pKind" = kind AND "group" = name
        UNION ALL
        SELECT '', cardinality(chosen), rules."queueInterval", COALESCE(rules."queueBurst", 1),
            COALESCE(rules."spentUntil", 0)
    ) AS rate
    WHERE every IS NOT NULL AND taken > 0
    ORDER BY name COLLATE "C"
    ON CONFLICT ("pKind", "group") DO UPDATE SET "spentUntil" = EXCLUDED."spentUntil";
    RETURN chosen;
END $$;

-- Lease up to n of the earliest due messages, and return them in order. A message that is not JSON,
-- or was delivered max_attempts times, becomes a dead letter instead; an expired one is deleted. If
-- nothing is left, it claims again.
-- The ids are chosen and locked first, so no plan can lease more than n. Reads: as CLAIM.
CREATE OR REPLACE FUNCTION public.delayed_queue_claim(
    queue text, n integer DEFAULT 1, lease interval DEFAULT '5 minutes',
    max_attempts integer DEFAULT 25
) RETURNS TABLE (
    id bigint, key text, payload jsonb, attempt integer, lease_id text, leased_until timestamptz,
    scheduled_at timestamptz, headers jsonb, "group" text
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    kind CONSTANT text := public.delayed_queue_kind(queue);
    duration CONSTANT bigint := public.delayed_queue_lease(0, lease);
    now bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    chosen bigint[];
    batches bigint[];
    new_id text;
BEGIN
    IF n IS NULL OR COALESCE(max_attempts, 0) < 1 THEN
        RAISE 'n must be a number and max_attempts at least 1, not % and %.', n, max_attempts
            USING ERRCODE = 'QD003';
    END IF;
    LOOP
        IF EXISTS (SELECT FROM public.delayed_queue_limit WHERE "pKind" = kind) THEN
            chosen := public.delayed_queue_deal(kind, n);
            now := floor(extract(epoch FROM clock_timestamp()) * 1000);
        ELSE
            chosen := ARRAY(
                SELECT id FROM public.delayed_queue
                WHERE "pKind" = kind AND "scheduledAt" <= now
                ORDER BY "scheduledAt", id
                LIMIT GREATEST(n, 0)
                FOR UPDATE SKIP LOCKED
            );
        END IF;
        new_id := gen_random_uuid();
        UPDATE public.delayed_queue
        SET "lockUuid" = new_id,
            "dueAt" = "scheduledAt",
            "scheduledAt" = now + duration,
            attempts = CASE WHEN "versionAt" <> "createdAt" THEN 0 ELSE attempts END + 1,
            headers = CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE headers END,
            "expiresAt" = CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE "expiresAt" END,
            "firstError" = CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE "firstError" END,
            "lastError" = CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE "lastError" END,
            "versionAt" = "createdAt"
        WHERE id = ANY (chosen);
        WITH gone AS (
            DELETE FROM public.delayed_queue WHERE id = ANY (chosen) AND "expiresAt" <= now
            RETURNING "batchId" AS batch
        )
        SELECT array_agg(batch) INTO batches FROM gone WHERE batch IS NOT NULL;
        IF batches IS NOT NULL THEN
            PERFORM public.delayed_queue_leave(batches, 'expired');
        END IF;
        PERFORM public.delayed_queue_reject(new_id, ARRAY[stored.id], CASE
            WHEN attempts > max_attempts THEN 'attempts exhausted' ELSE 'payload not decodable'
        END, error)
        FROM public.delayed_queue AS stored
        CROSS JOIN LATERAL public.delayed_queue_decode(payload) AS decoded
        WHERE stored.id = ANY (chosen) AND (attempts > max_attempts OR error IS NOT NULL);
        RETURN QUERY
        SELECT
            id, "pKey"::text, convert_from(payload, 'UTF8')::jsonb, attempts, new_id,
            public.delayed_queue_instant("scheduledAt"),
            public.delayed_queue_instant("scheduledAtInitially"), headers, "group"::text
        FROM public.delayed_queue
        WHERE id = ANY (chosen)
        ORDER BY "dueAt", id;
        EXIT WHEN FOUND OR chosen = '{}';
    END LOOP;
END $$;

-- Delete messages of a lease, all without ids; return their number: 0 if the lease was lost.
-- Reads: delayed_queue__LockUuidPlusIdIndex, as the three that follow.
CREATE OR REPLACE FUNCTION public.delayed_queue_acknowledge(
    lease_id text, ids bigint[] DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
    changed integer;
    batches bigint[];
BEGIN
    WITH gone AS (
        DELETE FROM public.delayed_queue
        WHERE "lockUuid" = lease_id AND (ids IS NULL OR id = ANY (ids))
        RETURNING "batchId" AS batch
    )
    SELECT count(*), array_agg(batch) FILTER (WHERE batch IS NOT NULL) INTO changed, batches
    FROM gone;
    IF batches IS NOT NULL THEN
        PERFORM public.delayed_queue_leave(batches, 'done');
    END IF;
    RETURN changed;
END $$;

-- Release messages of a lease, due now or after the delay, and record the error.
CREATE OR REPLACE FUNCTION public.delayed_queue_release(
    lease_id text, ids bigint[] DEFAULT NULL, delay interval DEFAULT NULL, error text DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
    now CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    due_at CONSTANT bigint := public.delayed_queue_due_at(now, NULL, delay);
    note CONSTANT text := NULLIF(right(error, 10000), '');
    kinds text[];
BEGIN
    WITH released AS (
        UPDATE public.delayed_queue
        SET "scheduledAt" = due_at,
            "lockUuid" = NULL,
            "firstError" = COALESCE("firstError", note),
            "lastError" = COALESCE(note, "lastError")
        WHERE "lockUuid" = lease_id AND (ids IS NULL OR id = ANY (ids))
        RETURNING "pKind"
    )
    SELECT array_agg("pKind") INTO kinds FROM released;
    IF due_at <= now + 3000 AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('delayed_queue_' || md5(kind), '') FROM unnest(kinds) AS kind GROUP BY kind;
    END IF;
    RETURN COALESCE(cardinality(kinds), 0);
END $$;

-- Move messages of a lease to the dead letters. Their fingerprint is that of fingerprints.py for
-- errors that are no tracebacks: equal for those that differ in quoted values and numbers only.
CREATE OR REPLACE FUNCTION public.delayed_queue_reject(
    lease_id text, ids bigint[] DEFAULT NULL, reason text DEFAULT NULL, error text DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
    now CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    why CONSTANT text := COALESCE(NULLIF(right(reason, 10000), ''), 'rejected');
    note CONSTANT text := NULLIF(right(error, 10000), '');
    cause text := concat_ws(' · ', left(why, 500), left(substring(note FROM '[^\s][^\n]*'), 500));
    changed integer;
    batches bigint[];
BEGIN
    cause := regexp_replace(
        cause, $re$(?<!\w)'[^'\n]*'(?!\w)|"[^"\n]*"|`[^`\n]*`|“[^”\n]*”$re$, $q$'…'$q$, 'g'
    );
    cause := regexp_replace(
        cause,
        '(?<![^\s()\[\]{},;=])(?<!HTTP )(?<!status )[^\s()\[\]{},;=]*\d[^\s()\[\]{},;=]*', '#', 'g'
    );
    cause := trim(regexp_replace(cause, '\s+', ' ', 'g'));
    WITH rejected AS (
        DELETE FROM public.delayed_queue
        WHERE "lockUuid" = lease_id AND (ids IS NULL OR id = ANY (ids))
        RETURNING *, (
            SELECT id FROM public.delayed_queue_batch AS batch
            WHERE batch.id = "batchId" AND "waitsForDead"
        ) AS waiting
    ),
    kept AS (
        INSERT INTO public.delayed_queue_dead_letter (
            "pKind", "pKey", payload, headers, attempts, reason, "firstError", "lastError",
            "scheduledAtInitially", "createdAt", "diedAt", fingerprint, "group", "lockUuid",
            "batchId"
        )
        SELECT
            "pKind", "pKey", payload, headers, attempts, why, COALESCE("firstError", note),
            COALESCE(note, "lastError"), "scheduledAtInitially", "createdAt", now,
            left(encode(sha256(convert_to(cause, 'UTF8')), 'hex'), 16), "group", lease_id, waiting
        FROM rejected
    )
    SELECT count(*), array_agg("batchId") FILTER (WHERE "batchId" IS NOT NULL)
    INTO changed, batches FROM rejected;
    IF batches IS NOT NULL THEN
        PERFORM public.delayed_queue_leave(batches, 'dead');
    END IF;
    RETURN changed;
END $$;

-- Prolong leases to at least now and the duration; never shorten them.
CREATE OR REPLACE FUNCTION public.delayed_queue_extend(
    lease_id text, duration interval DEFAULT '5 minutes', ids bigint[] DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
    now CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    until CONSTANT bigint := public.delayed_queue_lease(now, duration);
    changed integer;
BEGIN
    UPDATE public.delayed_queue SET "scheduledAt" = GREATEST("scheduledAt", until)
    WHERE "lockUuid" = lease_id AND (ids IS NULL OR id = ANY (ids));
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;
