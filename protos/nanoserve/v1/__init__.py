"""Version 1 of the contract: code generated from the protos of this folder."""
