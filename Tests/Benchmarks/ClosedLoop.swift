import CEpoll
import FoundationEssentials
import Glibc
import NIOPosix

/// A closed loop: every connection sends its next request when the last is answered.
///
/// It shares the processor with what it measures, so it does little more than two system calls for a request, on the thread
/// that runs it. It goes on where it stopped as often as it is told to, for services that are measured in turn.
final class ClosedLoop {
    private struct Connection {
        var socket: Int32
        var sent: Int64 = 0
        /// What has come of an answer that didn't come at once.
        var part: [UInt8] = []
    }

    /// So long it lets answers gather, fifty microseconds, as network cards do with packets. Answers of other connections
    /// than the first are most often on their way; to be woken for each, and to wake the service for each request, would
    /// take processor time that a load from elsewhere doesn't.
    private static let moment = timespec(tv_sec: 0, tv_nsec: 50_000)
    /// No server takes so long that still answers.
    private static let patience: Int32 = 20_000

    private let target: LoadTarget
    private let bodies: [UInt8]
    private var position = 0
    /// Where those that are sent end, and whether they begin again there.
    private var end: Int
    private var sendsAgain: Bool
    private var head: [UInt8]
    private let fixedHead: Int
    private var connections: [Connection] = []
    private let poll: Int32
    private let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 65_536, alignment: 16)
    private var latencies: [Int64] = []
    private var seconds = 0.0
    private var failures = 0
    private var refusals = 0

    /// A loop of so many connections that posts lines of bodies, one after another.
    ///
    /// - Parameter sendsAgain: whether it begins again after the last; otherwise that is an error.
    init(_ count: Int, to url: String, _ bodies: [UInt8], sendsAgain: Bool) throws {
        target = try LoadTarget(url)
        self.bodies = bodies
        self.sendsAgain = sendsAgain
        end = bodies.count
        head = Array(target.head.utf8)
        fixedHead = head.count
        latencies.reserveCapacity(1_000_000)
        poll = epoll_create1(0)
        guard poll >= 0 else { throw BenchmarkError("no epoll: \(String(cString: strerror(errno)))") }
        for index in 0..<count { connections.append(Connection(socket: try connect(index))) }
    }

    deinit {
        for connection in connections { close(connection.socket) }
        close(poll)
        buffer.deallocate()
    }

    /// What came of all requests so far.
    var result: LoadResult {
        LoadResult(latencies: latencies, seconds: seconds, failures: failures, refusals: refusals)
    }

    /// Sends for so many seconds, and takes the answers to all it sent.
    func run(_ seconds: Int) throws {
        let start = Self.now()
        let end = start + Int64(seconds) * 1_000_000_000
        for index in connections.indices { try send(on: index) }
        var waiting = connections.count
        var events = [epoll_event](repeating: epoll_event(), count: connections.count)
        var free: [Int] = []
        while waiting > 0 {
            var ready = epoll_wait(poll, &events, Int32(events.count), Self.patience)
            if ready > 0, waiting > 1 {
                var moment = Self.moment
                nanosleep(&moment, nil)
                ready = epoll_wait(poll, &events, Int32(events.count), 0)
            }
            guard ready != 0 else {
                failures += waiting
                break
            }
            free.removeAll(keepingCapacity: true)
            for event in events.prefix(Int(max(ready, 0))) {
                let index = Int(event.data.u32)
                if try receive(on: index) { free.append(index) }
            }
            if Self.now() < end {
                for index in free { try send(on: index) }
            } else {
                waiting -= free.count
            }
        }
        self.seconds += Double(Self.now() - start) / 1e9
    }

    /// Forgets what came of the requests so far, and posts their bodies again from now on, as often as there is time.
    func startAgain() {
        (end, position, sendsAgain) = (position, 0, true)
        (latencies, seconds, failures, refusals) = ([], 0, 0, 0)
    }

    // MARK: - Private parts

    private func connect(_ index: Int) throws -> Int32 {
        let socket = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = in_port_t(target.port).bigEndian
        guard inet_pton(AF_INET, target.host, &address.sin_addr) == 1 else {
            throw BenchmarkError("\(target.host) is no IPv4 address")
        }
        let size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let outcome = withUnsafePointer(to: address) { address in
            address.withMemoryRebound(to: sockaddr.self, capacity: 1) { Glibc.connect(socket, $0, size) }
        }
        guard outcome == 0 else { throw BenchmarkError("can't connect: \(String(cString: strerror(errno)))") }
        var on: Int32 = 1
        setsockopt(socket, Int32(IPPROTO_TCP), TCP_NODELAY, &on, socklen_t(MemoryLayout<Int32>.size))
        var event = epoll_event(events: EPOLLIN.rawValue, data: epoll_data_t(u32: UInt32(index)))
        epoll_ctl(poll, EPOLL_CTL_ADD, socket, &event)
        return socket
    }

    /// Sends the next line.
    private func send(on index: Int) throws {
        if sendsAgain, position == end { position = 0 }
        let (sent, whole) = try bodies.withUnsafeBytes { bodies in
            guard let start = bodies.baseAddress.map({ $0 + position }),
                let end = memchr(start, Int32(UInt8(ascii: "\n")), end - position)
            else {
                throw BenchmarkError("the tokens were used up before the time was: raise --tokens, or lower --seconds")
            }
            let length = UnsafeRawPointer(end) - start
            position += length + 1
            head.removeLast(head.count - fixedHead)
            head.append(contentsOf: "\(length)\r\n\r\n".utf8)
            connections[index].sent = Self.now()
            return (send(start, length, on: connections[index].socket), head.count + length)
        }
        guard sent == whole else {
            failures += 1
            try reconnect(index)
            return try send(on: index)
        }
    }

    /// Sends the head and a body behind it, and says how much of both went.
    private func send(_ body: UnsafeRawPointer, _ length: Int, on socket: Int32) -> Int {
        head.withUnsafeMutableBytes { head in
            var parts = (
                iovec(iov_base: head.baseAddress, iov_len: head.count),
                iovec(iov_base: UnsafeMutableRawPointer(mutating: body), iov_len: length)
            )
            return withUnsafeMutablePointer(to: &parts) { parts in
                parts.withMemoryRebound(to: iovec.self, capacity: 2) { parts in
                    var message = msghdr()
                    message.msg_iov = parts
                    message.msg_iovlen = 2
                    return sendmsg(socket, &message, Int32(MSG_NOSIGNAL))
                }
            }
        }
    }

    /// Takes what has come. True: the answer is complete.
    private func receive(on index: Int) throws -> Bool {
        let count = recv(connections[index].socket, buffer.baseAddress, buffer.count, Int32(MSG_DONTWAIT))
        guard count > 0 else {
            guard count == 0 || errno != EAGAIN else { return false }
            failures += 1
            try reconnect(index)
            return true
        }
        let status: Int?
        if connections[index].part.isEmpty {
            let piece = UnsafeRawBufferPointer(rebasing: buffer[..<count])
            status = try Self.status(piece)
            if status == nil { connections[index].part = Array(piece) }
        } else {
            connections[index].part += buffer[..<count]
            status = try connections[index].part.withUnsafeBytes { try Self.status($0) }
            if status != nil { connections[index].part = [] }
        }
        guard let status else { return false }
        latencies.append(Self.now() - connections[index].sent)
        if status != 200 { refusals += 1 }
        return true
    }

    private func reconnect(_ index: Int) throws {
        close(connections[index].socket)
        connections[index] = Connection(socket: try connect(index))
    }

    /// The status of a whole answer; nil while something is missing. An answer to a notification says how long it is.
    private static func status(_ answer: UnsafeRawBufferPointer) throws -> Int? {
        var rest = answer[...]
        var length: Int?
        while let end = rest.firstIndex(of: UInt8(ascii: "\n")) {
            let line = rest[..<end]
            rest = rest[(end + 1)...]
            if line.count <= 1 {
                guard let length else { throw BenchmarkError("an answer doesn't say how long it is") }
                return rest.count >= length ? number(answer.dropFirst(9).prefix(3)) : nil
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
