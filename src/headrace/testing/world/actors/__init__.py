"""Who lives in a world: clients of every protocol with their real code, people, and somebody who means no good."""
