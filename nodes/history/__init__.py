"""What devices did: the last minutes second by second (Redis), then by minute and by hour (database).

`ring` keeps the seconds, written by `nodes.live.flush`; `rollups` makes minutes and hours of them, by the beat; `series` reads all of it for pages and
REST. Kept true: nothing is written to the database more often than once a minute, and everything there has an end (`GPUPLANE_MINUTES_KEPT_HOURS`,
`GPUPLANE_HOURS_KEPT_DAYS`).
"""
