"""Benchmarks: each is ``python -m benchmarks.NAME``, and all take ``--quick``.

``benchmarks``: every call of the queue beside bare SQL. ``peers``: the worker beside other queues.
``growth``, ``held_snapshot``: the worker on large tables, and under an old snapshot. ``paths``:
our session beside Django's cursors. ``turns``: a queue with limits per group beside one without.
``tasks``: tasks beside handlers. ``batch_handlers``: rows stored by batches beside one by one.
``http``, ``callbacks``, ``callback_workers``: the API and its callbacks. ``notifications``,
``intake``: the dispatcher and its entry points. ``spark``: the data source. ``shared`` has what
they share; ``docs/benchmarks.md`` the results.
"""
