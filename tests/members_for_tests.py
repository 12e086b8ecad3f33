"""The members of a tick from single ones, in columns as the engine makes them."""

from jitney.records import Member, Members


def in_columns(*members: Member) -> Members:
    """Those of one position that got a token as columns, and then the others."""
    generating = [each for each in members if each.length == 1 and each.samples]
    return Members(
        tuple([(each.request_id, each.index) for each in generating]),
        tuple([each.slot for each in generating]),
        tuple([each.start for each in generating]),
        tuple([each for each in members if not (each.length == 1 and each.samples)]),
    )
