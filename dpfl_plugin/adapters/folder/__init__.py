"""A folder that all sites can reach as a platform: NFS, one that is synchronised, or what a courier carries.

keys      who signs: key pairs, and the list of members with their public keys
envelope  a message as bytes: who it is from, to whom, in which run and round; checksum, signature, encryption
place     files in a folder where anybody may write anything
project   a configuration as what servers and silos need: agreement, model, records
server    one step of the server: ask, take what has come, end the round
silo      one step of a silo: answer what is asked
status    how it stands, for people
"""
