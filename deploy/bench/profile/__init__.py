"""Where a step's time goes, between scheduler, wire, worker and device."""
