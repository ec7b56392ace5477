"""History of devices: the last minutes second by second (Redis), then by minute and by hour (database).

`ring` keeps the seconds, written by `nodes.live.flush`; `rollups` makes minutes and hours of them; `series` reads all
of it, for pages and REST. Invariants: the database is written once a minute at most, and everything in it
expires (`GPUPLANE_MINUTES_KEPT_HOURS`, `GPUPLANE_HOURS_KEPT_DAYS`).
"""
