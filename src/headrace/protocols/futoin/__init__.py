"""FutoIn event streams (FTN18): JSON and MessagePack events over HTTP and WebSocket, polled or pushed."""
