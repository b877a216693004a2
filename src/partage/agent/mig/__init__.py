"""Creates hardware instances on a node for the pods that have them in their records, and removes them afterwards.

    pods ──pods──> wanted ─┐
    journal ───────────────┼─ plan ──> steps ──runner──> driver, journal, CDI specs
    driver, specs on disk ─┘

`plan` is pure and level-triggered: it compares the wanted instances, the journal and the card, and names the
next steps. After each step it reads everything again, so after a crash at any point planning simply starts
again. `service` runs one task for each card.

This package does not inject instances into containers and does not publish a card's state. It
reports which instances are ready, which are foreign, and which hindrances exist.

Source: the HAMi document; NVIDIA's MIG user guide and NVML (docs/sources/mig.md 2). Not run on hardware.
"""
