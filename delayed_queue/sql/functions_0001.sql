-- The queue from any language: functions of the core, version 1.
--
-- The migration runs this file with the schema of the tables in place of "public". Functions find
-- their names in pg_catalog only, so objects of callers replace nothing. Instants are milliseconds
-- since the epoch, floored, by the database's clock. Statements follow delayed_queue/queue/store.
-- Errors: QD001 invalid message, QD002 payload not encodable, QD003 invalid configuration.

-- Return the kind of a queue: a name with a bar is the kind itself. Refuses bad names and keys.
CREATE OR REPLACE FUNCTION public.delayed_queue_kind(queue text, key text DEFAULT '-') RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind CONSTANT text := CASE WHEN queue LIKE '%|%' THEN queue ELSE queue || '|json' END;
BEGIN
    IF COALESCE(queue, '') = '' THEN
        RAISE 'A queue needs a name: a non-empty string.' USING ERRCODE = 'QD001';
    ELSIF length(kind) > 100 THEN
        RAISE 'The kind % has % characters; at most 100 fit (queue name, a bar, codec name). %',
            quote_literal(kind), length(kind), 'Shorten the queue''s name.' USING ERRCODE = 'QD001';
    ELSIF COALESCE(length(key), 0) NOT BETWEEN 1 AND 200 THEN
        RAISE 'A key has 1 to 200 characters; this one has %: %.',
            COALESCE(length(key), 0), quote_nullable(left(key, 40)) USING ERRCODE = 'QD001';
    END IF;
    RETURN kind;
END $$;

-- Return when a message is due: at an instant, after a delay, or now.
CREATE OR REPLACE FUNCTION public.delayed_queue_due_at(
    now bigint, schedule_at timestamptz, delay interval
) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due_at CONSTANT numeric := COALESCE(
        floor(extract(epoch FROM schedule_at) * 1000),
        now + floor(extract(epoch FROM delay) * 1000), now
    );
BEGIN
    IF schedule_at IS NOT NULL AND delay IS NOT NULL THEN
        RAISE 'Give schedule_at or delay, not both.' USING ERRCODE = 'QD001';
    ELSIF due_at BETWEEN -62135596800000 AND 253402300799999 THEN
        RETURN due_at;
    ELSIF delay IS NOT NULL THEN
        RAISE 'delay % leads outside the years 1 to 9999.', delay USING ERRCODE = 'QD001';
    END IF;
    RAISE 'schedule_at % is outside the years 1 to 9999 in UTC.', schedule_at
        USING ERRCODE = 'QD001';
END $$;

-- Return the milliseconds of a lease.
CREATE OR REPLACE FUNCTION public.delayed_queue_lease(lease interval) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF lease IS NULL OR extract(epoch FROM lease) NOT BETWEEN 0.001 AND 3650 * 86400 THEN
        RAISE 'The lease duration is %. It must be an interval from 1 ms to 3650 days.',
            COALESCE(lease::text, 'NULL') USING ERRCODE = 'QD003';
    END IF;
    RETURN floor(extract(epoch FROM lease) * 1000);
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
CREATE OR REPLACE FUNCTION public.delayed_queue_json(value jsonb, depth integer DEFAULT 0)
RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF depth > 200 THEN
        RAISE 'The json codec cannot encode more than 200 levels.' USING ERRCODE = 'QD002';
    ELSIF jsonb_typeof(value) = 'object' THEN
        RETURN '{' || COALESCE((
            SELECT string_agg(
                to_json(item.key)::text || ':' || CASE
                    WHEN jsonb_typeof(item.value) NOT IN ('object', 'array') THEN item.value::text
                    ELSE public.delayed_queue_json(item.value, depth + 1)
                END, ',' ORDER BY item.key COLLATE "C")
            FROM jsonb_each(value) AS item
        ), '') || '}';
    ELSIF jsonb_typeof(value) = 'array' AND value::text !~ '.["[{]' THEN
        RETURN replace(value::text, ', ', ',');
    ELSIF jsonb_typeof(value) = 'array' THEN
        RETURN '[' || COALESCE((
            SELECT string_agg(
                CASE
                    WHEN jsonb_typeof(item.value) NOT IN ('object', 'array') THEN item.value::text
                    ELSE public.delayed_queue_json(item.value, depth + 1)
                END, ',' ORDER BY item.place)
            FROM jsonb_array_elements(value) WITH ORDINALITY AS item (value, place)
        ), '') || ']';
    END IF;
    RETURN value::text;
END $$;

-- Offer a message whose queue and key are checked. One statement gives the outcome: xmax = 0 for a
-- new row, no row if nothing changed. Listeners are notified if it is due within the default poll
-- interval, and the holder of a lease that ends; not while notifications pile up, which could fail
-- the caller's transaction. Python reads no integer of more than 4,300 digits, and no other
-- number beyond a double. jsonb keeps no exponents: 200 zeros at the end show that there was one.
-- Reads: delayed_queue__PKeyPlusKindUniqueIndex.
CREATE OR REPLACE FUNCTION public.delayed_queue_put(
    id bigint, kind text, key text, payload jsonb, schedule_at timestamptz, delay interval,
    can_update boolean, headers jsonb, "group" text, expires_at timestamptz
) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    now CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    due_at bigint := now;
    expiry bigint;
    body CONSTANT text := public.delayed_queue_json(payload);
    header text;
    is_created boolean;
BEGIN
    IF schedule_at IS NOT NULL OR delay IS NOT NULL THEN
        due_at := public.delayed_queue_due_at(now, schedule_at, delay);
    END IF;
    IF headers IS NOT NULL AND headers <> 'null' THEN
        header := public.delayed_queue_json(headers);
    END IF;
    IF expires_at IS NOT NULL THEN
        expiry := public.delayed_queue_due_at(now, expires_at, NULL);
    END IF;
    IF expiry <= due_at THEN
        RAISE 'The message would expire at or before its due time, %: %.',
            public.delayed_queue_instant(due_at), expires_at USING ERRCODE = 'QD001';
    ELSIF body IS NULL THEN
        RAISE 'The json codec cannot encode SQL NULL; JSON null is ''null''::jsonb.'
            USING ERRCODE = 'QD002';
    ELSIF length("group") NOT BETWEEN 1 AND 100 THEN
        RAISE 'A group has 1 to 100 characters; this one has %: %.',
            length("group"), quote_literal(left("group", 40)) USING ERRCODE = 'QD001';
    ELSIF header NOT LIKE '{%' THEN
        RAISE 'headers must map names to JSON values, not %.', left(header, 40)
            USING ERRCODE = 'QD001';
    ELSIF length(headers::text) > 65536 THEN
        RAISE 'Headers have at most 65536 characters as JSON; these have %.', length(headers::text)
            USING ERRCODE = 'QD001';
    ELSIF length(concat(body, header)) > 308 AND jsonb_path_exists(
        jsonb_build_array(payload, headers),
        '$.** ? (@.type() == "number").abs() ? (@ >= 1e4300
            || @ >= 1.7976931348623158e308 && (@ % 1e200 == 0 || @.floor() != @))'
    ) THEN
        RAISE 'The json codec cannot encode a number that Python cannot read.'
            USING ERRCODE = 'QD002';
    END IF;
    INSERT INTO public.delayed_queue AS stored (
        id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group", "expiresAt"
    )
    VALUES (
        COALESCE(id, nextval('public.delayed_queue_id_seq')), key, kind, convert_to(body, 'UTF8'),
        due_at, due_at, now, header::jsonb, now, "group", expiry
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
        "versionAt" = EXCLUDED."createdAt"
    WHERE COALESCE(can_update, true)
        AND (
            stored.payload <> EXCLUDED.payload
            OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
            OR EXCLUDED."expiresAt" IS DISTINCT FROM CASE
                WHEN stored."versionAt" <> stored."createdAt" THEN NULL ELSE stored."expiresAt"
            END
        )
    RETURNING stored.xmax = 0 INTO is_created;
    IF is_created IS NULL THEN
        RETURN 'ignored';
    ELSIF due_at <= now + 3000 AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('delayed_queue_' || md5(kind), '');
    END IF;
    RETURN CASE WHEN is_created THEN 'created' ELSE 'updated' END;
END $$;

-- Store a message, or replace the one under its key if payload or schedule differ.
CREATE OR REPLACE FUNCTION public.delayed_queue_offer(
    queue text, key text, payload jsonb, schedule_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL, can_update boolean DEFAULT true, headers jsonb DEFAULT NULL,
    "group" text DEFAULT NULL, expires_at timestamptz DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN public.delayed_queue_put(
        NULL, public.delayed_queue_kind(queue, key), key, payload, schedule_at, delay, can_update,
        headers, "group", expires_at
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
    offered record;
    message jsonb;
    outcomes text[];
BEGIN
    IF jsonb_typeof(messages) IS DISTINCT FROM 'array' THEN
        RAISE 'A batch is a JSON array of messages, not %.',
            quote_nullable(left(messages::text, 40)) USING ERRCODE = 'QD001';
    END IF;
    FOR offered IN
        SELECT id, place, value
        FROM (
            SELECT nextval('public.delayed_queue_id_seq') AS id, place, value
            FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, place)
        ) AS numbered
        ORDER BY (value->>'key') COLLATE "C", place
    LOOP
        message := offered.value;
        IF jsonb_typeof(message) <> 'object'
            OR jsonb_typeof(message->'key') IS DISTINCT FROM 'string'
            OR message - ARRAY[
                'key', 'payload', 'schedule_at', 'delay', 'can_update', 'headers', 'group', 'expires_at'
            ] <> '{}'
            OR message->>'schedule_at' !~* ':[0-9]{2}.*(z|[+-][0-9]{2}(:?[0-9]{2})?)$'
            OR message->>'expires_at' !~* ':[0-9]{2}.*(z|[+-][0-9]{2}(:?[0-9]{2})?)$'
        THEN
            RAISE 'A message has a text as key, a payload, and may have schedule_at and %: %.',
                'expires_at with a time zone, delay, can_update, headers and group; this is none',
                left(offered.value::text, 200) USING ERRCODE = 'QD001';
        END IF;
        outcomes[offered.place] := public.delayed_queue_put(
            offered.id, public.delayed_queue_kind(kind, message->>'key'), message->>'key',
            message->'payload', (message->>'schedule_at')::timestamptz,
            (message->>'delay')::interval, (message->>'can_update')::boolean, message->'headers',
            message->>'group', (message->>'expires_at')::timestamptz
        );
    END LOOP;
    RETURN QUERY
    SELECT value->>'key', outcomes[place]
    FROM jsonb_array_elements(messages) WITH ORDINALITY AS item (value, place)
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
    is_found boolean;
    holder text;
BEGIN
    DELETE FROM public.delayed_queue WHERE "pKey" = key AND "pKind" = kind
    RETURNING true, "lockUuid" INTO is_found, holder;
    IF holder IS NOT NULL AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('delayed_queue_leases', holder);
    END IF;
    RETURN COALESCE(is_found, false);
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
    SELECT CASE WHEN every IS NULL THEN 2147483647 ELSE GREATEST(LEAST(burst, floor((
        now - LEAST(COALESCE(spent_until, 0), now + burst * every) + (burst - 1) * every
    ) / every) + 1), 0) END
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
    -- The row of the queue, whose group is empty, comes first.
    SELECT
        stored."isOrdered", stored."isFair", stored."blocksOnDead", stored."queueInterval",
        COALESCE(stored."queueBurst", 1) AS "queueBurst", own.*
    INTO rules
    FROM public.delayed_queue_limit AS stored
    LEFT JOIN LATERAL (
        SELECT "spentUntil", "pausedAt", concurrency, interval, burst WHERE "group" = ''
    ) AS own ON true
    WHERE stored."pKind" = kind
    ORDER BY stored."group"
    LIMIT 1;
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
    IF rules IS NULL OR rules."pausedAt" IS NOT NULL OR free < 1 THEN
        RETURN '{}';
    END IF;
    WITH earliest AS (
        SELECT id, "scheduledAt", "group" FROM public.delayed_queue
        WHERE "pKind" = kind AND "scheduledAt" <= now
        ORDER BY "scheduledAt", id LIMIT 500
    ),
    later AS (
        SELECT id, "scheduledAt", "group" FROM public.delayed_queue
        WHERE "pKind" = kind AND "scheduledAt" <= now AND "scheduledAt" >= (
            SELECT min("scheduledAt") + floor(random() * (now - min("scheduledAt")))::bigint
            FROM earliest
        )
        ORDER BY "scheduledAt", id LIMIT 500
    )
    SELECT
        array_agg(id ORDER BY "scheduledAt", id) FILTER (WHERE "group" IS NULL),
        (array_agg("group" ORDER BY random()) FILTER (WHERE "group" > ''))[1]
    INTO plain, since
    FROM (SELECT * FROM earliest UNION SELECT * FROM later) AS seen;
    -- Walk from group to group, once round. An expired lease keeps its slot for a late extension.
    chosen := ARRAY(
        WITH RECURSIVE walk (name, lap) AS (
            SELECT since, 0
            UNION ALL
            SELECT COALESCE(next.name, ''), walk.lap + (next.name IS NULL)::integer
            FROM walk
            CROSS JOIN LATERAL (SELECT LEAST(
                (SELECT "group" FROM public.delayed_queue
                WHERE "pKind" = kind AND "lockUuid" IS NULL AND "group" > walk.name
                ORDER BY "group", "scheduledAt", id LIMIT 1),
                (SELECT "group" FROM public.delayed_queue
                WHERE "pKind" = kind AND "lockUuid" IS NOT NULL AND "group" > walk.name
                ORDER BY "group", "scheduledAt", id LIMIT 1)
            ) AS name) AS next
            WHERE walk.lap = 0 OR next.name < since
        ),
        share AS (
            SELECT walk.name, COALESCE(own.weight, 1) AS weight, random() AS luck, ids, due
            FROM walk
            LEFT JOIN public.delayed_queue_limit AS own ON "pKind" = kind AND "group" = walk.name
            CROSS JOIN LATERAL (
                SELECT count(*) AS held, count(*) FILTER (WHERE "scheduledAt" > now) AS live
                FROM public.delayed_queue
                WHERE "pKind" = kind AND "group" = walk.name AND "lockUuid" IS NOT NULL
            ) AS lease
            CROSS JOIN LATERAL (
                SELECT GREATEST(slots - held, 0) AS fresh,
                    LEAST(held - live, GREATEST(slots - live, 0)) AS retaken
                FROM (SELECT CASE
                    WHEN rules."isOrdered" THEN 1
                    ELSE COALESCE(own.concurrency, rules.concurrency, 2147483647)
                END AS slots) AS slot
            ) AS room
            CROSS JOIN LATERAL (
                SELECT
                    array_agg(id ORDER BY rank, "scheduledAt", id) AS ids,
                    array_agg("scheduledAt" ORDER BY rank, "scheduledAt", id) AS due
                FROM (
                    SELECT * FROM (
                        (SELECT id, "scheduledAt", 0 AS rank FROM public.delayed_queue
                        WHERE "pKind" = kind AND "group" = walk.name AND "lockUuid" IS NOT NULL
                            AND ("group", "scheduledAt") <= (walk.name, now)
                        ORDER BY "group", "scheduledAt", id
                        LIMIT retaken)
                        UNION ALL
                        (SELECT id, "scheduledAt", 1 FROM public.delayed_queue
                        WHERE "pKind" = kind AND "group" = walk.name AND "lockUuid" IS NULL
                            AND "scheduledAt" > "scheduledAtInitially" AND rules."isOrdered"
                        ORDER BY "lockUuid", "scheduledAt", id LIMIT fresh)
                        UNION ALL
                        (SELECT id, "scheduledAt", 2 FROM public.delayed_queue
                        WHERE "pKind" = kind AND "group" = walk.name AND "lockUuid" IS NULL
                            AND ("group", "scheduledAt") <= (walk.name, now)
                        ORDER BY "group", "scheduledAt", id
                        LIMIT LEAST(fresh, free))
                    ) AS found
                    ORDER BY rank, "scheduledAt", id
                    LIMIT LEAST(free, retaken + fresh, public.delayed_queue_permits(
                        COALESCE(own.interval, rules.interval), COALESCE(own.burst, rules.burst, 1),
                        own."spentUntil", now))
                ) AS first
            ) AS message
            WHERE ids IS NOT NULL
                AND own."pausedAt" IS NULL
                AND NOT (rules."isOrdered" AND EXISTS (
                    SELECT 1 FROM public.delayed_queue
                    WHERE "pKind" = kind AND "group" = walk.name AND "lockUuid" IS NULL
                        AND "scheduledAt" > "scheduledAtInitially" AND "scheduledAt" > now
                ))
                AND NOT (rules."blocksOnDead" AND EXISTS (
                    SELECT 1 FROM public.delayed_queue_dead_letter
                    WHERE "pKind" = kind AND "group" = walk.name
                        AND "diedAt" > COALESCE(own."resumedAt", -9223372036854775808)
                ))
            LIMIT GREATEST(n, 100)
        ),
        picked AS MATERIALIZED (
            SELECT id, name FROM (
                SELECT item.id, name, (turn - 1) / weight AS round, luck, due_at
                FROM share
                CROSS JOIN LATERAL unnest(ids, due) WITH ORDINALITY AS item (id, due_at, turn)
                UNION ALL
                SELECT item.id, NULL, turn - 1, (SELECT random()), "scheduledAt"
                FROM unnest(plain[1:free]) WITH ORDINALITY AS item (id, turn)
                JOIN public.delayed_queue AS stored ON stored.id = item.id
            ) AS dealt
            ORDER BY CASE WHEN rules."isFair" THEN round END,
                CASE WHEN rules."isFair" THEN luck END, due_at, id
            LIMIT free
        )
        SELECT locked.id
        FROM picked
        CROSS JOIN LATERAL (
            SELECT stored.id FROM public.delayed_queue AS stored
            WHERE stored.id = picked.id AND stored."group" IS NOT DISTINCT FROM picked.name
                AND COALESCE(stored."scheduledAt" <= now, false)
            FOR UPDATE SKIP LOCKED
        ) AS locked
    );
    INSERT INTO public.delayed_queue_limit ("pKind", "group", "spentUntil")
    SELECT kind, name, GREATEST(LEAST(COALESCE(spent, 0), now + burst * every), now) + taken * every
    FROM (
        SELECT name, COALESCE(own.interval, rules.interval) AS every,
            COALESCE(own.burst, rules.burst, 1) AS burst, own."spentUntil" AS spent, taken
        FROM (
            SELECT "group" AS name, count(*) AS taken FROM public.delayed_queue AS stored
            WHERE stored.id = ANY (chosen) AND "group" IS NOT NULL GROUP BY "group"
        ) AS leased
        LEFT JOIN public.delayed_queue_limit AS own ON "pKind" = kind AND "group" = name
        UNION ALL
        SELECT '', rules."queueInterval", rules."queueBurst", rules."spentUntil",
            cardinality(chosen)
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
    duration CONSTANT bigint := public.delayed_queue_lease(lease);
    now bigint := floor(extract(epoch FROM statement_timestamp()) * 1000);
    chosen bigint[];
    dead record;
    new_id text;
BEGIN
    IF n IS NULL OR COALESCE(max_attempts, 0) < 1 THEN
        RAISE 'n must be a number and max_attempts at least 1, not % and %.', n, max_attempts
            USING ERRCODE = 'QD003';
    END IF;
    LOOP
        chosen := ARRAY(
            SELECT due.id FROM (
                SELECT id FROM public.delayed_queue
                WHERE "pKind" = kind
                    AND "scheduledAt" <= now
                    AND NOT EXISTS (SELECT 1 FROM public.delayed_queue_limit WHERE "pKind" = kind)
                ORDER BY "scheduledAt", id
                LIMIT (SELECT GREATEST(n, 0))
                FOR UPDATE SKIP LOCKED
            ) AS due
            LIMIT GREATEST(n, 0)
        );
        IF chosen = '{}' AND n > 0
            AND EXISTS (SELECT 1 FROM public.delayed_queue_limit WHERE "pKind" = kind)
        THEN
            chosen := public.delayed_queue_deal(kind, n);
            now := floor(extract(epoch FROM clock_timestamp()) * 1000);
        END IF;
        EXIT WHEN chosen = '{}';
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
        FOR dead IN
            SELECT stored.id, attempts > max_attempts AS is_exhausted, error
            FROM public.delayed_queue AS stored
            CROSS JOIN LATERAL public.delayed_queue_decode(payload) AS decoded
            WHERE stored.id = ANY (chosen) AND (attempts > max_attempts OR error IS NOT NULL)
        LOOP
            PERFORM public.delayed_queue_reject(
                new_id, ARRAY[dead.id],
                CASE
                    WHEN dead.is_exhausted THEN 'attempts exhausted' ELSE 'payload not decodable'
                END,
                dead.error
            );
        END LOOP;
        DELETE FROM public.delayed_queue WHERE id = ANY (chosen) AND "expiresAt" <= now;
        RETURN QUERY
        SELECT
            id, "pKey"::text, convert_from(payload, 'UTF8')::jsonb, attempts, new_id,
            public.delayed_queue_instant("scheduledAt"),
            public.delayed_queue_instant("scheduledAtInitially"), headers, "group"::text
        FROM public.delayed_queue AS stored
        WHERE id = ANY (chosen) AND "lockUuid" = new_id
        ORDER BY "dueAt", id;
        EXIT WHEN FOUND;
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
BEGIN
    DELETE FROM public.delayed_queue
    WHERE "lockUuid" = lease_id AND (ids IS NULL OR id = ANY (ids));
    GET DIAGNOSTICS changed = ROW_COUNT;
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
    changed integer;
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
    SELECT array_agg(DISTINCT "pKind"), count(*) INTO kinds, changed FROM released;
    IF due_at <= now + 3000 AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('delayed_queue_' || md5(kind), '') FROM unnest(kinds) AS kind;
    END IF;
    RETURN changed;
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
    cause CONSTANT text := regexp_replace(regexp_replace(
        concat_ws(' · ', left(why, 500), left(substring(note FROM '[^\s][^\n]*'), 500)),
        $re$(?<!\w)'[^'\n]*'(?!\w)|"[^"\n]*"|`[^`\n]*`|“[^”\n]*”$re$, $q$'…'$q$, 'g'
    ), '(?<![^\s()\[\]{},;=])(?<!HTTP )(?<!status )[^\s()\[\]{},;=]*\d[^\s()\[\]{},;=]*', '#', 'g');
    changed integer;
BEGIN
    WITH rejected AS (
        DELETE FROM public.delayed_queue
        WHERE "lockUuid" = lease_id AND (ids IS NULL OR id = ANY (ids))
        RETURNING *
    )
    INSERT INTO public.delayed_queue_dead_letter (
        "pKind", "pKey", payload, headers, attempts, reason, "firstError", "lastError",
        "scheduledAtInitially", "createdAt", "diedAt", fingerprint, "group"
    )
    SELECT
        "pKind", "pKey", payload, headers, attempts, why, COALESCE("firstError", note),
        COALESCE(note, "lastError"), "scheduledAtInitially", "createdAt", now,
        left(encode(sha256(convert_to(
            trim(regexp_replace(cause, '\s+', ' ', 'g')), 'UTF8')), 'hex'), 16), "group"
    FROM rejected;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;

-- Prolong leases to at least now and the duration; never shorten them.
CREATE OR REPLACE FUNCTION public.delayed_queue_extend(
    lease_id text, duration interval DEFAULT '5 minutes', ids bigint[] DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
    until CONSTANT bigint := floor(extract(epoch FROM statement_timestamp()) * 1000)
        + public.delayed_queue_lease(duration);
    changed integer;
BEGIN
    UPDATE public.delayed_queue SET "scheduledAt" = GREATEST("scheduledAt", until)
    WHERE "lockUuid" = lease_id AND (ids IS NULL OR id = ANY (ids));
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed;
END $$;
