"""What is asked: dialects (pod → request), GpuClaims, admission."""
