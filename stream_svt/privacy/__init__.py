"""What has been promised about each dataset, exactly: units of privacy loss, prices and ledgers."""
