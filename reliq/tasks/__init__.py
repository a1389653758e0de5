"""For the code of tasks and of their callers: `reliq.once` and `reliq.publish_many`."""
