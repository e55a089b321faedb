"""Measuring instruments: load, CPU and memory, the peer, and the programs that compare SMore with it."""
