"""Results of tasks for the plan tests, and priorities of many queues."""

from __future__ import annotations

from typing import Final

# Ids in the order of their numbers.
TASKS: Final = """
INSERT INTO delayed_queue_task_result (
    id, task, backend, "pKind", payload, status, "enqueuedAt", "scheduledAt", "finishedAt"
)
SELECT
    lpad(to_hex(n), 32, '0')::uuid, 'shop.tasks.task_' || n %% 20, 'default', 'bulk|json', '{}',
    CASE WHEN n %% 10 = 0 THEN 'FAILED' ELSE 'SUCCESSFUL' END, %(now)s + n, %(now)s + n,
    %(now)s + n
FROM (SELECT i * 7919::bigint %% 100000 AS n FROM generate_series(1, 100000) AS i) AS scrambled
"""
PRIORITIES: Final = """
INSERT INTO delayed_queue_task_priority (queue, priority)
SELECT 'queue-' || n, n %% 100 FROM generate_series(1, 2000) AS n
"""
