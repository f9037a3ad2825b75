import AppleSimulator
import FoundationEssentials
import TestSupport
import Testing

/// Runs only with `SIWAD_FAULTS=long`, since it loads the machine for minutes; `SIWAD_BINARY` names a release build.
@Suite(
    "Thousands of hostile connections",
    .serialized,
    .timeLimit(.minutes(10)),
    .enabled(if: LongVariants.areWanted)
)
struct HostileConnectionTests {
    private static let size = 5_000
    private static let requests = 600

    @Test(
        "99 % of the genuine notifications are answered within 50 ms at the same time.",
        arguments: HostileCrowd.Kind.allCases
    )
    func latency(kind: HostileCrowd.Kind) async throws {
        try #require(HostileCrowd.hasRoom(for: Self.size), "the limit on open files is too low")
        try await MachineLock.withLock {
            try await DaemonFixture.withDaemon { fixture, daemon, addresses in
                let process = try #require(daemon.processID)
                let alone = try await latencies(fixture, addresses)
                try await HostileCrowd.with(Self.size, kind, at: addresses.notifications) { crowd in
                    let before = try residentKilobytes(of: process)
                    let loaded = try await latencies(fixture, addresses)
                    let after = try residentKilobytes(of: process)
                    let p99 = loaded[loaded.count * 99 / 100]
                    print(
                        "\(crowd.open) connections \(kind.rawValue), \(crowd.made) made: p50 \(loaded[loaded.count / 2]),",
                        "p99 \(p99), longest \(loaded[loaded.count - 1]); alone p99 \(alone[alone.count * 99 / 100]);",
                        "memory \(before) kB, then \(after) kB"
                    )
                    #expect(crowd.open > Self.size / 2)
                    // The limit applies to a release build.
                    if Binary.isRelease { #expect(p99 < .milliseconds(50)) }
                    #expect(after < before * 2)
                }
                #expect(daemon.status == nil)
            }
        }
    }

    /// Response times of many notifications in ascending order. Every tenth uses a separate connection.
    private func latencies(_ fixture: DaemonFixture, _ addresses: DaemonProcess.Addresses) async throws -> [Duration] {
        var latencies: [Duration] = []
        for number in 0..<Self.requests {
            let body = try fixture.body(fixture.event(sub: "person\(number % 50)"))
            let start = ContinuousClock.now
            let response = try await Web.post(body, to: addresses.notifications, closing: number % 10 == 0)
            latencies.append(.now - start)
            #expect(response.status == 200)
            try await Task.sleep(for: .milliseconds(10))
        }
        return latencies.sorted()
    }

    private func residentKilobytes(of process: Int32) throws -> Int {
        let status = try String(contentsOfFile: "/proc/\(process)/status", encoding: .utf8)
        let line = status.split(separator: "\n").first { $0.hasPrefix("VmRSS:") }
        return try #require(line?.split(whereSeparator: \.isWhitespace).dropFirst().first.flatMap { Int($0) })
    }
}
