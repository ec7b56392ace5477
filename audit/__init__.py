"""What happened: one append-only event per state change; outbox and live feed in one."""
