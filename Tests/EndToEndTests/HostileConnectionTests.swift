import AppleSimulator
import FoundationEssentials
import Testing

/// On demand, since it takes the machine for minutes: `SIWAD_FAULTS=long`, with `SIWAD_BINARY` naming an optimized siwad.
@Suite(
    "A crowd of hostile connections",
    .serialized,
    .timeLimit(.minutes(10)),
    .enabled(if: ProcessInfo.processInfo.environment["SIWAD_FAULTS"] == "long")
)
struct HostileConnectionTests {
    private static let size = 5_000
    private static let requests = 600

    @Test("Genuine notifications are answered in 50 ms, 99 of 100, beside it.", arguments: HostileCrowd.Kind.allCases)
    func latency(kind: HostileCrowd.Kind) async throws {
        try #require(HostileCrowd.hasRoom(for: Self.size), "too few files may be open here")
        try await Turn.take {
            try await Scene.withDaemon { scene, daemon, addresses in
                let process = try #require(daemon.processID)
                let alone = try await latencies(scene, addresses)
                try await HostileCrowd.with(Self.size, kind, at: addresses.notifications) { crowd in
                    let before = try residentKilobytes(of: process)
                    let beside = try await latencies(scene, addresses)
                    let after = try residentKilobytes(of: process)
                    let p99 = beside[beside.count * 99 / 100]
                    print(
                        "\(crowd.open) connections \(kind.rawValue), \(crowd.made) made: p50 \(beside[beside.count / 2]),",
                        "p99 \(p99), longest \(beside[beside.count - 1]); alone p99 \(alone[alone.count * 99 / 100]);",
                        "memory \(before) kB, then \(after) kB"
                    )
                    #expect(crowd.open > Self.size / 2)
                    // What is promised is promised for the optimized program.
                    if Binary.isRelease { #expect(p99 < .milliseconds(50)) }
                    #expect(after < before * 2)
                }
                #expect(daemon.status == nil)
            }
        }
    }

    /// How long each of many notifications took, every tenth on a connection of its own, the shortest first.
    private func latencies(_ scene: Scene, _ addresses: DaemonProcess.Addresses) async throws -> [Duration] {
        var latencies: [Duration] = []
        for number in 0..<Self.requests {
            let body = try scene.body(scene.event(sub: "person\(number % 50)"))
            let start = ContinuousClock.now
            let answer = try await Web.post(body, to: addresses.notifications, closing: number % 10 == 0)
            latencies.append(.now - start)
            #expect(answer.status == 200)
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
