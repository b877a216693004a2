"""Hardware instances on a node: made for the pods that have them in their records, removed after.

    pods ──pods──> wanted ─┐
    journal ───────────────┼─ plan ──> steps ──runner──> driver, journal, CDI specs
    driver, specs on disk ─┘

`plan` is pure and level-triggered: it compares what is wanted, what the journal says and what the
card has, and names the next steps; after each step everything is looked at again. A crash anywhere
therefore only means that planning starts once more. `service` gives every card a turn of its own.

What this package does not know: who injects an instance into a container, and what is published of
a card. It answers which instances are ready, which are not ours, and what is in the way.

Source: the HAMi document; NVIDIA's MIG user guide and NVML (docs/sources/mig.md 2). Not run on hardware.
"""
