"""Creates hardware instances on a node for the pods that have them in their records, and removes them afterwards.

    pods ──pods──> wanted ─┐
    journal ───────────────┼─ plan ──> steps ──runner──> driver, journal, CDI specs
    driver, specs on disk ─┘

`plan` is pure. After each step it reads everything again, so planning simply starts again after a crash at any point.
Injection into containers and the publication of a card's state are elsewhere.

Source: the HAMi document; NVIDIA's MIG user guide and NVML (docs/sources/mig.md 2). Not run on hardware.
"""
