public import NIOCore

/// What a client of the notification endpoint may cost. A notification is about one kilobyte, sent at once.
public struct ServerLimits: Sendable {
    /// Open connections. At the limit, silent connections make room.
    public var connections = 8192
    /// The largest body, in bytes.
    public var bodyBytes = 65_536
    /// The largest head of a request, in bytes.
    public var headBytes = 8192
    /// Header fields of a request, trailers included.
    public var headerFields = 64
    /// Requests that are still arriving, in bytes for all connections of an event loop. Above it the slowest are closed.
    public var unfinishedBytes = 16 * 1_048_576
    /// Requests of one connection that wait for their answer before more are read.
    public var pipelined = 32
    /// From the first byte of a request to the end of its head; also for a TLS handshake.
    public var headDeadline = TimeAmount.seconds(10)
    /// From the head of a request to the end of its body.
    public var bodyDeadline = TimeAmount.seconds(10)
    /// From the end of a request to its answer.
    public var answerDeadline = TimeAmount.seconds(25)
    /// How long a connection may stay silent between requests.
    public var idleDeadline = TimeAmount.seconds(75)
    /// How long a connection that the server ends may take to read its last answer.
    public var lingerDeadline = TimeAmount.seconds(2)

    /// The limits that fit Apple's traffic.
    public init() {}

    /// How often deadlines are looked at: often enough for the shortest of them.
    var sweepInterval: TimeAmount {
        let shortest = min(headDeadline, bodyDeadline, answerDeadline, idleDeadline, lingerDeadline)
        return min(.seconds(1), max(.milliseconds(5), .nanoseconds(shortest.nanoseconds / 4)))
    }
}
