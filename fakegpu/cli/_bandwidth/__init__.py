"""The parts of `fakegpu bandwidth`: what is sent and expected (workload), one rank's process (rank), the meeting of
several hosts (session), and what is printed (table)."""
