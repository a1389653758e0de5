"""Confirmations on every engine. Integration tests cover those that need replicas."""


def test_replicas_are_never_refused_beforehand(store):
    """The level "replicated" is not refused beforehand, as only a publish shows the replicas."""
    store.store.confirmer.require_confirm("replicated")
