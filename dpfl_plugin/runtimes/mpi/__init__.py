"""Silos on MPI ranks: rank 0 is the server and holds no record; every other rank holds some silos.

wire      what messages say: JSON headers, and vectors as they lie in memory; nothing is pickled
link      how they travel; the only module that calls MPI
silos     what a silo rank does
server    what rank 0 does: the runtime, and the beginning of a session
job       how a process finds its place, and how a job ends
"""
