"""Workers and the batch jobs that hold them: started, watched, given back.

A campaign outlives its batch jobs and knows its next work, so it decides when to start and end
Parsl blocks (batch jobs), and which nodes to avoid. Parsl only carries tasks and talks to the batch
system.
"""
