"""The gRPC half of Perper Fabric: executions, stream items, listeners, the scaler, reflection and health."""
