"""Access to the machine: files, clock, terminal, hardware. Any package may import this one.

clock.py, heartbeat.py, startup.py    progress and the current phase
files.py, records.py, removal.py      atomic writes, JSON records, deletion
fields.py, user_code.py, imports.py   tables and Python code of users; imports outside deadlines
machine.py, orphans.py, terminal.py   hardware facts, leftover processes, safe terminal output
"""
