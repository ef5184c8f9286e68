"""Topics and jobs: the words of the HTTP side for queues and messages.

Plain values in and out; no HTTP. A job is a message: its topic is the queue, its id the key.
"""

from __future__ import annotations

from delayed_queue.topics.adding import add_job, add_jobs
from delayed_queue.topics.catalogue import (
    configure_topic,
    create_topic,
    forget_topics,
    list_topics,
    read_topic,
    treatment_of,
)
from delayed_queue.topics.consuming import (
    bury_job,
    finish_job,
    give_back,
    kinds_at_hand,
    kinds_to_pop,
    pop_jobs,
    release_job,
    seconds_to_next_job,
    touch_job,
)
from delayed_queue.topics.dead import (
    dead_jobs,
    delete_dead_job,
    find_dead_job,
    kick_job,
    kick_topic,
    replay,
)
from delayed_queue.topics.finding import delete_job, find_job
from delayed_queue.topics.grouping import add_job_in_group
from delayed_queue.topics.idempotency import KeptAnswer, Refusal, once, prune_answers
from delayed_queue.topics.inspecting import (
    TopicStats,
    is_paused,
    pause_topic,
    peek,
    resume_topic,
    topic_stats,
)
from delayed_queue.topics.jobs import (
    AddedJob,
    Answer,
    DeadJob,
    IfExists,
    Job,
    JobState,
    NewJob,
    PoppedJob,
    job_from,
)

__all__ = [
    "AddedJob",
    "Answer",
    "DeadJob",
    "IfExists",
    "Job",
    "JobState",
    "KeptAnswer",
    "NewJob",
    "PoppedJob",
    "Refusal",
    "TopicStats",
    "add_job",
    "add_job_in_group",
    "add_jobs",
    "bury_job",
    "configure_topic",
    "create_topic",
    "dead_jobs",
    "delete_dead_job",
    "delete_job",
    "find_dead_job",
    "find_job",
    "finish_job",
    "forget_topics",
    "give_back",
    "is_paused",
    "job_from",
    "kick_job",
    "kick_topic",
    "kinds_at_hand",
    "kinds_to_pop",
    "list_topics",
    "once",
    "pause_topic",
    "peek",
    "pop_jobs",
    "prune_answers",
    "read_topic",
    "release_job",
    "replay",
    "resume_topic",
    "seconds_to_next_job",
    "topic_stats",
    "touch_job",
    "treatment_of",
]
