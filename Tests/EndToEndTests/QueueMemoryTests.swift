import AppleTokens
import AppleSimulator
import FoundationEssentials
import NIOCore
import NIOPosix
import Postgres
import StoreTestSupport
import TestSupport
import Testing

@Suite("Memory under load", .timeLimit(.minutes(10)))
struct QueueMemoryTests {
    /// Sends a request over a new connection, and leaves the connection open.
    private func send(_ request: ByteBuffer, to url: String) async throws -> any Channel {
        let authority = url.split(separator: "/")[1].split(separator: ":")
        let port = try #require(Int(authority[1]))
        let channel = try await ClientBootstrap(group: Web.eventLoops)
            .connect(host: String(authority[0]), port: port).get()
        try await channel.writeAndFlush(request)
        return channel
    }

    /// A request of almost 64 KiB that consists mostly of a signed token.
    private func request(_ fixture: DaemonFixture, to url: String) throws -> ByteBuffer {
        let claims = fixture.event(sub: "padded", id: "padded").claims(issuer: SimulatedApple.appleIssuer)
        let padding = String(repeating: "x", count: 47_000)
        let token = try fixture.apple.token(claims: "{\"padding\":\"\(padding)\"," + claims.dropFirst())
        let path = url.split(separator: "/").dropFirst(2).joined(separator: "/")
        return ByteBuffer(
            string: "POST /\(path) HTTP/1.1\r\nHost: siwad\r\nContent-Length: \(token.utf8.count)\r\n\r\n\(token)"
        )
    }

    /// The peak resident memory of a process, in MiB.
    private func peak(of process: Int32) throws -> Int { try memory("VmHWM", of: process) }

    /// A value of proc(5), status, in MiB.
    private func memory(_ name: String, of process: Int32) throws -> Int {
        let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
        let line = status.split(separator: "\n").first { $0.hasPrefix("\(name):") }
        return try #require(line?.split(whereSeparator: \.isWhitespace).dropFirst().first.flatMap { Int($0) }) / 1_024
    }

    /// The number of 503 responses by reason.
    private func unavailable(_ addresses: DaemonProcess.Addresses) async throws -> [String: Int] {
        var counts: [String: Int] = [:]
        for line in try await Web.get(addresses.operations + "/metrics").body.split(separator: "\n")
        where line.hasPrefix("siwad_unavailable_total{") {
            let parts = line.split(separator: "\"")
            counts[String(parts[1])] = parts.last.flatMap { $0.split(separator: " ").last }.flatMap { Int($0) }
        }
        return counts
    }

    @Test("While the database is locked, memory stays bounded however many large notifications arrive.")
    func locked() async throws {
        try await TestDatabase.with(.siwa) { database in
            try await DaemonFixture.with(database.conninfo) { fixture in
                try await fixture.withDaemon { daemon, addresses in
                    let process = try #require(daemon.processID)
                    let request = try request(fixture, to: addresses.notifications)
                    let before = try peak(of: process)
                    try await database.withOpenTransaction { session throws(PostgresError) in
                        try session.execute(script: "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0")
                        try session.execute(script: "LOCK TABLE siwa.notifications IN ACCESS EXCLUSIVE MODE")
                    } _: {
                        var channels: [any Channel] = []
                        for _ in 0..<2_400 { channels.append(try await send(request, to: addresses.notifications)) }
                        // A debug build reads them so slowly that it may give up on the database first.
                        try await eventually("many to be refused") {
                            let counts = try await unavailable(addresses)
                            return counts["queue-full", default: 0] + counts["database-unavailable", default: 0] > 200
                        }
                        if Binary.isRelease { #expect(try await unavailable(addresses)["queue-full", default: 0] > 0) }
                        for channel in channels {
                            // The daemon may have closed it.
                            try? await channel.close()
                        }
                    }
                    let after = try peak(of: process)
                    let program = try memory("RssFile", of: process)
                    print("2,400 padded notifications: from \(before) to \(after) MiB, \(program) of the program")
                    // A debug build has 45 MiB of pages of the program, which are no part of its limit.
                    if Binary.isRelease {
                        #expect(after < 128, "it started with \(before) MiB")
                    } else {
                        #expect(after - program < 86, "it started with \(before) MiB")
                    }
                }
            }
        }
    }
}
