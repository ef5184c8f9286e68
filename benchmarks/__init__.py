"""Benchmarks: each is ``python -m benchmarks.NAME``, and all take ``--quick``.

``benchmarks``: every call of the queue beside bare SQL. ``peers``: the worker beside other queues.
``growth``, ``held_snapshot``: the worker on large tables, and under an old snapshot. ``paths``:
our session beside Django's cursors. ``batch_handlers``, ``batches``: rows stored by batches, and
what members cost. ``http``, ``callbacks``: the API and its callbacks.
``notifications``: the dispatcher. ``spark``: the data source. ``shared`` has what they share;
``docs/benchmarks.md`` the results.
"""
