"""SQL of thin clients over caches with query entities: Ignite's tables and statements, DuckDB's answers.

text         what a statement says, as far as the hub must know it
kinds        SQL, Java and Arrow types, and the data objects that hold their values
table        what a query entity makes of the entries of a cache
definitions  CREATE TABLE
scope        what DuckDB gets to see
results      what comes back, as data objects
changes      INSERT, MERGE, UPDATE and DELETE, each one transaction
statements   all of them, for one connection
"""
