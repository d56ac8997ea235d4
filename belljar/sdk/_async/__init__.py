"""The SDK as it is written: asynchronous."""
