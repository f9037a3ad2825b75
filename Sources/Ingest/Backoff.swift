/// Growing, jittered pauses between attempts, so that several daemons don't return to a server at the same moment.
struct Backoff {
    private var failures = 0

    /// The next pause: half to all of 0.1 s, 0.2 s … 5 s.
    mutating func next() -> Duration {
        let full = min(Duration.milliseconds(100) * (1 << min(failures, 6)), .seconds(5))
        failures += 1
        return full * Double.random(in: 0.5...1)
    }
}
