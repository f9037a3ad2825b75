import CEpoll
import Glibc

/// A closed loop: each connection sends its next request as soon as the previous one is answered.
///
/// It runs on one thread and shares the processors with what it measures, so it does little more than two system calls
/// for a request.
final class ClosedLoop {
    private struct Connection {
        var socket: Int32
        var sentAt: Int64 = 0
        /// The beginning of a response that arrived in several pieces.
        var partialResponse: [UInt8] = []
    }

    /// A service that sends nothing for this long is considered hung.
    private static let timeoutMilliseconds: Int32 = 20_000

    private let target: LoadTarget
    private let bodies: [UInt8]
    private let range: Range<Int>
    private let repeats: Bool
    /// Where the next body begins.
    private(set) var position: Int
    private var request: [UInt8] = []
    private var connections: [Connection] = []
    private let poll: Int32
    private let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 65_536, alignment: 16)
    private var latencies: [Int64] = []
    private var failures = 0
    private var refusals = 0

    /// Connects to the service.
    ///
    /// - Parameters:
    ///   - bodies: request bodies, one per line.
    ///   - bearer: a token of the caller.
    ///   - range: the part of `bodies` to send.
    ///   - repeats: whether to begin again after the last body; otherwise running out of bodies is an error.
    init(
        connections count: Int,
        to url: String,
        bearer: String? = nil,
        _ bodies: [UInt8],
        _ range: Range<Int>,
        repeats: Bool
    ) throws {
        target = try LoadTarget(url, bearer: bearer)
        self.bodies = bodies
        self.range = range
        self.repeats = repeats
        position = range.lowerBound
        latencies.reserveCapacity(1_000_000)
        poll = epoll_create1(0)
        guard poll >= 0 else { throw BenchmarkError("epoll_create1 failed: \(String(cString: strerror(errno)))") }
        for index in 0..<count { connections.append(Connection(socket: try connect(index))) }
    }

    deinit {
        for connection in connections { close(connection.socket) }
        close(poll)
        buffer.deallocate()
    }

    /// Sends for `seconds`, then waits for the outstanding responses.
    func run(seconds: Int) throws -> LoadResult {
        let start = Self.now()
        let end = start + Int64(seconds) * 1_000_000_000
        for index in connections.indices { try send(on: index) }
        var waiting = connections.count
        var events = [epoll_event](repeating: epoll_event(), count: connections.count)
        while waiting > 0 {
            let ready = epoll_wait(poll, &events, Int32(events.count), Self.timeoutMilliseconds)
            guard ready != 0 else {
                failures += waiting
                break
            }
            for event in events.prefix(Int(max(ready, 0))) {
                let index = Int(event.data.u32)
                guard try receive(on: index) else { continue }
                if Self.now() < end {
                    try send(on: index)
                } else {
                    waiting -= 1
                }
            }
        }
        let taken = Double(Self.now() - start) / 1e9
        return LoadResult(latencies: latencies, seconds: taken, failures: failures, refusals: refusals)
    }

    // MARK: - Private parts

    private func connect(_ index: Int) throws -> Int32 {
        let socket = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = in_port_t(target.port).bigEndian
        guard inet_pton(AF_INET, target.host, &address.sin_addr) == 1 else {
            throw BenchmarkError("\(target.host) is not an IPv4 address")
        }
        let size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let outcome = withUnsafePointer(to: address) { address in
            address.withMemoryRebound(to: sockaddr.self, capacity: 1) { Glibc.connect(socket, $0, size) }
        }
        guard outcome == 0 else { throw BenchmarkError("cannot connect: \(String(cString: strerror(errno)))") }
        var on: Int32 = 1
        setsockopt(socket, Int32(IPPROTO_TCP), TCP_NODELAY, &on, socklen_t(MemoryLayout<Int32>.size))
        var event = epoll_event(events: EPOLLIN.rawValue, data: epoll_data_t(u32: UInt32(index)))
        epoll_ctl(poll, EPOLL_CTL_ADD, socket, &event)
        return socket
    }

    private func send(on index: Int) throws {
        try makeRequest()
        connections[index].sentAt = Self.now()
        let sent = Glibc.send(connections[index].socket, request, request.count, Int32(MSG_NOSIGNAL))
        guard sent == request.count else {
            failures += 1
            try reconnect(index)
            return try send(on: index)
        }
    }

    /// Writes a request with the next body into `request`.
    private func makeRequest() throws {
        if repeats, position == range.upperBound { position = range.lowerBound }
        guard let end = bodies[position..<range.upperBound].firstIndex(of: UInt8(ascii: "\n")) else {
            throw BenchmarkError("all tokens were used before the run ended: raise --tokens or lower --seconds")
        }
        request.removeAll(keepingCapacity: true)
        request += target.head.utf8
        request += "\(end - position)\r\n\r\n".utf8
        request += bodies[position..<end]
        position = end + 1
    }

    /// Reads what has arrived. Returns true when the response is complete.
    private func receive(on index: Int) throws -> Bool {
        let count = recv(connections[index].socket, buffer.baseAddress, buffer.count, Int32(MSG_DONTWAIT))
        guard count > 0 else {
            guard count == 0 || errno != EAGAIN else { return false }
            failures += 1
            try reconnect(index)
            return true
        }
        connections[index].partialResponse += buffer[..<count]
        guard let status = try connections[index].partialResponse.withUnsafeBytes({ try Self.status($0) }) else {
            return false
        }
        connections[index].partialResponse.removeAll(keepingCapacity: true)
        latencies.append(Self.now() - connections[index].sentAt)
        if status != 200 { refusals += 1 }
        return true
    }

    private func reconnect(_ index: Int) throws {
        close(connections[index].socket)
        connections[index] = Connection(socket: try connect(index))
    }

    /// The status of a complete response, which must have a Content-Length; nil if a part is missing.
    static func status(_ response: UnsafeRawBufferPointer) throws -> Int? {
        var rest = response[...]
        var length: Int?
        while let end = rest.firstIndex(of: UInt8(ascii: "\n")) {
            let line = rest[..<end]
            rest = rest[(end + 1)...]
            if line.count <= 1 {
                guard let length else { throw BenchmarkError("a response has no Content-Length") }
                return rest.count >= length ? number(response.dropFirst(9).prefix(3)) : nil
            }
            if line.count > lengthField.utf8CodeUnitCount, isLength(line) {
                length = number(line.dropFirst(lengthField.utf8CodeUnitCount))
            }
        }
        return nil
    }

    private static let lengthField: StaticString = "content-length:"

    private static func isLength(_ line: Slice<UnsafeRawBufferPointer>) -> Bool {
        lengthField.withUTF8Buffer { name in zip(line, name).allSatisfy { $0 | 0x20 == $1 | 0x20 } }
    }

    private static func number(_ digits: Slice<UnsafeRawBufferPointer>) -> Int {
        digits.reduce(0) { (0x30...0x39).contains($1) ? $0 * 10 + Int($1 - 0x30) : $0 }
    }

    private static func now() -> Int64 {
        var time = timespec()
        clock_gettime(CLOCK_MONOTONIC, &time)
        return Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_nsec)
    }
}
