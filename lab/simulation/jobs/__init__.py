"""
The simulator of a queue of trainings: the rule of ``scheduler/policy/jobs`` unchanged, on one heap, over the publishers'
traces. Nothing is decided here. A simulated number tests the logic of scheduling; it says nothing about a device.
"""
