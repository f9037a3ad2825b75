import JOSE
import TestSupport
import Testing

@Suite(
    "Webhooks, verified with the reference library",
    .timeLimit(.minutes(5)),
    .enabled(if: PythonProgram.isAvailable, PythonProgram.missing)
)
struct WebhookDeliveryTests {
    /// A database, and what its daemons and commands need for deliveries.
    private struct Bench {
        let fixture: DaemonFixture
        let directory: TemporaryDirectory
        let settings: [String: String]

        static func with(_ body: (Bench) async throws -> Void) async throws {
            let keys = try SealingKeys.newLine(name: "test")
            let settings = ["SIWAD_SEALING_KEYS": keys, "SIWAD_DELIVERY_ALLOW": "127.0.0.0/8"]
            try await TemporaryDirectory.with { directory in
                try await DaemonFixture.with { fixture in
                    try await body(Bench(fixture: fixture, directory: directory, settings: settings))
                }
            }
        }

        @discardableResult
        func endpoints(_ arguments: String...) async throws -> [String] {
            let run = try await siwad(["endpoints"] + arguments, environment: fixture.environment(settings))
            #expect(run.status == 0, "\(arguments): \(run.errors)")
            return run.lines.map(String.init)
        }

        /// Adds an endpoint with a receiver, which knows the secrets.
        func add(_ name: String, _ arguments: [String] = [], refusals: Int = 0) async throws -> PythonReceiver {
            let file = try directory.write(name, "")
            let receiver = try await PythonReceiver(fixture, secrets: file, refusals: refusals)
            let common = ["endpoints", "add", name, "--url", receiver.url, "--note", "a test"]
            let add = try await siwad(common + arguments, environment: fixture.environment(settings))
            #expect(add.status == 0, "\(add.errors)")
            try await learn(name)
            return receiver
        }

        /// Gives the receiver the present secrets, and the former ones as further lines.
        func learn(_ name: String, before: [String] = []) async throws {
            _ = try directory.write(name, (try await endpoints("secret", name) + before).map { $0 + "\n" }.joined())
        }

        func start() async throws -> (daemon: DaemonProcess, url: String) {
            let daemon = fixture.start(settings)
            return (daemon, try await daemon.ready().notifications)
        }

        func revoke(_ sub: String, _ url: String) async throws {
            let body = try fixture.body(fixture.event("consent-revoked", sub: sub))
            #expect(try await Web.post(body, to: url).status == 200)
        }
    }

    @Test("A delivery is accepted by HMAC and by Ed25519, and has the id and the body of the change's event.")
    func signatures() async throws {
        try await Bench.with { bench in
            let plain = try await bench.add("plain")
            let both = try await bench.add("both", ["--signature", "both"])
            let (_, url) = try await bench.start()
            for sub in ["a", "b"] { try await bench.revoke(sub, url) }
            for (receiver, versions) in [(plain, ["v1"]), (both, ["v1", "v1a"])] {
                try await eventually("two deliveries") { try receiver.messages.count == 2 }
                for message in try receiver.messages {
                    #expect(message.signatures == versions)
                    #expect(message.accepted == Array(versions.indices))
                }
            }
            let messages = try plain.messages.sorted { $0.body < $1.body }
            #expect(try both.messages.sorted { $0.body < $1.body }.map(\.id) == messages.map(\.id))
            let events = try await siwad(
                ["changes", "follow", "--json", "--from-start", "--until-current"],
                environment: bench.fixture.environment()
            ).lines.map(String.init)
            #expect(events.count == 2)
            for message in messages {
                #expect(events.contains { $0.contains(message.id) && $0.hasSuffix(message.body.dropFirst()) })
            }
            #expect(try await PythonProgram.problems(events) == "")
        }
    }

    @Test("While a secret is replaced, both secrets accept a delivery; with --now, only the latest one does.")
    func rotation() async throws {
        try await Bench.with { bench in
            let receiver = try await bench.add("shop")
            let (_, url) = try await bench.start()
            var secrets = try await bench.endpoints("secret", "shop")
            var number = 0
            /// Revokes consents until a delivery is accepted by exactly these lines of the file.
            func delivered(_ accepted: [Int]) async throws {
                try await eventually("a delivery with the secrets \(accepted)") {
                    number += 1
                    try await bench.revoke("\(number)", url)
                    try await eventually("the delivery") { try receiver.messages.count == number }
                    return try receiver.messages.last?.accepted == accepted
                }
            }
            try await delivered([0])
            try await bench.endpoints("rotate", "shop", "--note", "a test")
            try await bench.learn("shop", before: secrets)
            try await delivered([0, 1])
            secrets = try await bench.endpoints("secret", "shop")
            try await bench.endpoints("rotate", "shop", "--now", "--note", "a test")
            try await bench.learn("shop", before: secrets)
            try await delivered([0])
            #expect(try receiver.messages.allSatisfy { $0.status == 200 })
        }
    }

    @Test("A delivery that failed is made again by the next daemon, with the same id, and is accepted.")
    func retried() async throws {
        try await Bench.with { bench in
            let receiver = try await bench.add("shop", ["--retries", "2s"], refusals: 1)
            let (daemon, url) = try await bench.start()
            try await bench.revoke("a", url)
            try await eventually("the first attempt") { try receiver.messages.count == 1 }
            await daemon.kill()
            _ = try await bench.start()
            try await eventually("the second attempt") { try receiver.messages.count == 2 }
            let messages = try receiver.messages
            #expect(messages.map(\.status) == [500, 200])
            #expect(messages[0].id == messages[1].id && messages[0].body == messages[1].body)
            #expect(messages.allSatisfy { $0.accepted == [0] })
        }
    }
}
