"""What everything else of the client rests on: requests that are tried again, their errors, and records."""
