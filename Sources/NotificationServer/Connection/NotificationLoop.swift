package import Ingest
package import NIOCore
import Telemetry

/// Receives the body of one request. `nil`: the response is delivered later with the same ticket.
package typealias RequestReceiver = (_ body: Span<UInt8>, _ ticket: UInt64) -> IngestResponse?

/// Makes the receiver of one event loop, on that event loop. `deliver` may be called on any thread; it takes batches of
/// responses, each ticket once.
package typealias RequestReceiverFactory =
    @Sendable (_ deliver: @escaping @Sendable ([Reply]) -> Void) -> RequestReceiver

/// The resources that a client of the notification endpoint may use. A notification is about one kilobyte in one packet.
package struct ServerLimits: Sendable {
    /// Open connections. At the limit, silent connections are closed to make room.
    package var connections = 8192
    /// The same with TLS. A connection with an incomplete record takes 44 KiB, before siwad sees a byte of it: 90 MiB together.
    package var encryptedConnections = 2048
    package var bodyBytes = 65_536
    package var headBytes = 8192
    /// Header fields of a request, trailers included.
    package var headerFields = 64
    /// Bytes of incomplete requests, for all connections of an event loop. Above it the slowest connections are closed.
    package var unfinishedBytes = 16 * 1_048_576
    /// Pending requests of one connection; at the limit, reading pauses.
    package var pipelined = 32
    /// From the first byte of a request to the end of its head; also for a TLS handshake.
    package var headDeadline = TimeAmount.seconds(10)
    /// From the head of a request to the end of its body.
    package var bodyDeadline = TimeAmount.seconds(10)
    /// From the end of a request to its response.
    package var responseDeadline = TimeAmount.seconds(25)
    /// Silence between requests.
    package var idleDeadline = TimeAmount.seconds(75)
    /// The time to read the last response on a connection that the server ends.
    package var lingerDeadline = TimeAmount.seconds(2)

    package init() {}

    /// The interval of deadline checks, short enough for the shortest deadline.
    var sweepInterval: TimeAmount {
        let shortest = min(headDeadline, bodyDeadline, responseDeadline, idleDeadline, lingerDeadline)
        return min(.seconds(1), max(.milliseconds(5), .nanoseconds(shortest.nanoseconds / 4)))
    }
}

/// State shared by the connections of one event loop, used on that event loop only.
final class NotificationLoop {
    let limits: ServerLimits
    let inspection: RequestInspection
    let metrics: SiwadMetrics
    let receive: RequestReceiver
    var tickets = TicketTable<NotificationConnection>()
    var responses = Responses()
    private(set) var unfinishedBytes = 0

    private let eventLoop: any EventLoop
    private let connectionLimit: Int
    private var connections: [NotificationConnection] = []
    private var isSweeping = false

    init(
        eventLoop: any EventLoop,
        path: String,
        limits: ServerLimits,
        connectionLimit: Int,
        metrics: SiwadMetrics,
        receive: @escaping RequestReceiver
    ) {
        self.eventLoop = eventLoop
        self.limits = limits
        self.connectionLimit = connectionLimit
        self.inspection = RequestInspection(path: path, bodyLimit: limits.bodyBytes)
        self.metrics = metrics
        self.receive = receive
    }

    func add(_ connection: NotificationConnection) {
        connection.position = connections.count
        connections.append(connection)
        metrics.connections.add(1)
        if connections.count > connectionLimit {
            // In the next iteration, because this connection is not registered yet and cannot be closed.
            eventLoop.assumeIsolated().execute { self.makeRoom() }
        }
        if !isSweeping {
            isSweeping = true
            scheduleSweep()
        }
    }

    func remove(_ connection: NotificationConnection) {
        guard let position = connection.position, let last = connections.popLast() else { return }
        connection.position = nil
        if last !== connection {
            connections[position] = last
            last.position = position
        }
        metrics.connections.add(-1)
    }

    func unfinishedBytesChanged(by change: Int) {
        unfinishedBytes += change
        if change > 0, unfinishedBytes > limits.unfinishedBytes {
            eventLoop.assumeIsolated().execute { self.dropSlowest() }
        }
    }

    func deliver(_ replies: [Reply]) {
        var touched: [NotificationConnection] = []
        touched.reserveCapacity(replies.count)
        for reply in replies {
            // The ticket of a request that timed out or whose connection was closed is no longer valid.
            guard let (connection, sequence) = tickets.redeem(reply.ticket) else { continue }
            connection.exchange.decided(sequence, Outcome(reply.answer))
            touched.append(connection)
        }
        for connection in touched {
            connection.writeReady()
            connection.flush()
        }
    }

    /// Checks the deadlines of all connections: a timer per request would cost more than the request.
    private func scheduleSweep() {
        _ = eventLoop.assumeIsolated().scheduleTask(in: limits.sweepInterval) {
            let now = NIODeadline.now()
            for connection in self.connections {
                connection.timePassed(now: now)
            }
            self.isSweeping = !self.connections.isEmpty
            if self.isSweeping {
                self.scheduleSweep()
            }
        }
    }

    /// Closes the connections with the lowest eviction priority, a few more than needed, because ranking them is a scan of
    /// all connections.
    private func makeRoom() {
        let excess = connections.count - connectionLimit
        guard excess > 0 else { return }
        let candidates = ranked { _ in true }.filter { $0.priority < .waiting }.map(\.connection)
        var victims = Array(candidates.prefix(excess + connectionLimit / 64))
        if victims.count < excess {
            // All others wait for a response, so the last to connect are closed.
            victims = Array(connections.suffix(excess))
        }
        metrics.evictedConnections.increment(by: victims.count)
        for connection in victims {
            connection.close()
        }
    }

    /// Closes the connections with the oldest incomplete requests until a quarter of the budget is free.
    private func dropSlowest() {
        for (connection, _) in ranked(where: { $0.unfinishedBytes > 0 }) {
            guard unfinishedBytes > limits.unfinishedBytes / 4 * 3 else { return }
            metrics.evictedConnections.increment()
            connection.close()
        }
    }

    private func ranked(
        where isCandidate: (NotificationConnection) -> Bool
    ) -> [(connection: NotificationConnection, priority: ConnectionExchange.EvictionPriority)] {
        let now = NIODeadline.now()
        return connections.filter(isCandidate).map { ($0, $0.exchange.evictionPriority(now: now)) }
            .sorted { $0.1 < $1.1 }
    }
}

/// The state of every event loop, reachable from any thread and used on its own event loop only.
struct NotificationLoops: Sendable {
    private let boxes: [ObjectIdentifier: NIOLoopBoundBox<NotificationLoop?>]

    /// Makes the state of every event loop of the group on that event loop.
    init(
        group: any EventLoopGroup,
        make: @escaping @Sendable (any EventLoop, _ deliver: @escaping @Sendable ([Reply]) -> Void) -> NotificationLoop
    ) async throws {
        var boxes: [ObjectIdentifier: NIOLoopBoundBox<NotificationLoop?>] = [:]
        for eventLoop in group.makeIterator() {
            let box = NIOLoopBoundBox<NotificationLoop?>.makeEmptyBox(eventLoop: eventLoop)
            try await eventLoop.submit {
                box.value = make(eventLoop) { replies in
                    eventLoop.execute { box.value?.deliver(replies) }
                }
            }.get()
            boxes[ObjectIdentifier(eventLoop)] = box
        }
        self.boxes = boxes
    }

    /// - Throws: `ioOnClosedChannel` for a connection that was accepted while the server ended.
    func state(on eventLoop: any EventLoop) throws -> NotificationLoop {
        guard let box = boxes[ObjectIdentifier(eventLoop)] else {
            preconditionFailure("a connection on an event loop of another server")
        }
        guard let state = box.value else { throw ChannelError.ioOnClosedChannel }
        return state
    }

    /// Releases the state. It holds the receiver, which holds the function that delivers to the state: a reference cycle.
    func end() async {
        for box in boxes.values {
            // Fails only if the event loop has stopped, and then nothing more is delivered.
            try? await box.eventLoop.submit { box.value = nil }.get()
        }
    }
}

/// Finds the waiting requests by ticket. Tickets are never used again, so a late response to an abandoned request finds
/// nothing.
struct TicketTable<Holder> {
    private var requests: [UInt64: (holder: Holder, sequence: UInt64)] = [:]
    private var lastTicket: UInt64 = 0

    var count: Int { requests.count }

    /// Issues a ticket for request number `sequence` of `holder`.
    mutating func issue(to holder: Holder, sequence: UInt64) -> UInt64 {
        lastTicket += 1
        requests[lastTicket] = (holder, sequence)
        return lastTicket
    }

    /// Invalidates a ticket; `nil` if it is not valid.
    @discardableResult
    mutating func redeem(_ ticket: UInt64) -> (holder: Holder, sequence: UInt64)? {
        requests.removeValue(forKey: ticket)
    }
}
