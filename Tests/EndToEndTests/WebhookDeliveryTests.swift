import AppleSimulator
import JOSE
import TestSupport
import Testing
import Webhooks

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

        /// Gives the receiver the next, the present and the former secrets, in lines of this order.
        func learn(_ name: String, next: [String] = [], before: [String] = []) async throws {
            let secrets = next + (try await endpoints("secret", name)) + before
            _ = try directory.write(name, secrets.map { $0 + "\n" }.joined())
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

    /// The types of changes.
    private static let types = [
        "siwa.consent.authorized", "siwa.consent.revoked", "siwa.sessions.ended", "siwa.email.forwarding_disabled",
        "siwa.email.forwarding_enabled", "siwa.account.deleted",
    ]

    private func event(_ message: PythonReceiver.Message) throws -> JSONValue {
        try JSONValue(parsing: Array(message.body.utf8))
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
                    #expect(message.status == 200, "\(message.body)")
                    #expect(message.type == "application/json")
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

    @Test("When the overlap of two secrets ends, a running daemon no longer signs with the old one.")
    func endOfOverlap() async throws {
        try await Bench.with { bench in
            let receiver = try await bench.add("shop")
            let (_, url) = try await bench.start()
            var number = 0
            func deliver() async throws -> PythonReceiver.Message {
                number += 1
                try await bench.revoke("\(number)", url)
                try await eventually("the delivery") { receiver.count == number }
                return try receiver.messages[number - 1]
            }
            // Imported, so that the receiver has it before the daemon signs with it.
            let secret = try WebhookSecret.newHMAC().text
            let file = try bench.directory.write("new", secret + "\n")
            try await bench.learn("shop", next: [secret])
            let first = try await deliver()
            #expect(first.accepted == [1])
            let note = "a test"
            try await bench.endpoints("rotate", "shop", "--overlap", "10s", "--secret-file", file, "--note", note)
            try await eventually("a delivery with both secrets") {
                let message = try await deliver()
                return message.accepted == [0, 1] && message.signatures == ["v1", "v1"]
            }
            try await bench.fixture.run(
                "SELECT pg_sleep(extract(epoch FROM max(expires_at) - clock_timestamp())) FROM siwa.endpoint_secrets"
            )
            let last = try await deliver()
            #expect(last.accepted == [0] && last.signatures == ["v1"])
            #expect(try receiver.messages.allSatisfy { $0.status == 200 })
        }
    }

    @Test("Each type of event has the body that the JSON Schema describes, with the address only where it is wanted.")
    func catalogue() async throws {
        try await Bench.with { bench in
            let types = Self.types.flatMap { ["--type", $0] }
            let receiver = try await bench.add("shop", types + ["--include", "email"])
            let (_, url) = try await bench.start()
            let address = "p@privaterelay.appleid.com"
            func signIn(minutesAgo minutes: Int) async throws {
                let time = "now() - interval '\(minutes) minutes'"
                try await bench.fixture.run(
                    "SELECT siwa.record_sign_in('com.example.one', 'p', '\(address)', true, \(time))"
                )
            }
            func post(_ type: String, minutesAgo minutes: Int64) async throws {
                var event = bench.fixture.event(type, sub: "p", secondsAgo: minutes * 60)
                if type.hasPrefix("email") {
                    event.email = address
                    event.isPrivateEmail = true
                }
                #expect(try await Web.post(bench.fixture.body(event), to: url).status == 200)
            }
            try await signIn(minutesAgo: 60)
            try await bench.fixture.run(
                "SELECT siwa.open_session('com.example.one', 'p', 'old', now() - interval '50 minutes')"
            )
            try await signIn(minutesAgo: 40)
            // The first one is older than the last sign-in, and ends only the session that rests on the one before.
            for minutes: Int64 in [45, 30] { try await post("consent-revoked", minutesAgo: minutes) }
            try await signIn(minutesAgo: 20)
            try await bench.fixture.run("SELECT siwa.open_session('com.example.one', 'p', 'new')")
            try await bench.fixture.run("SELECT siwa.end_session('new', 'operator')")
            try await post("email-disabled", minutesAgo: 15)
            try await post("email-enabled", minutesAgo: 10)
            try await eventually("the events before the deletion") { receiver.count == 7 }
            try await post("account-deleted", minutesAgo: 5)
            try await eventually("the deletion") { receiver.count == 8 }
            let messages = try receiver.messages
            #expect(messages.allSatisfy { $0.status == 200 && $0.accepted == [0] })
            #expect(try await PythonProgram.problems(messages.map(\.body)) == "")
            let expected = [
                "siwa.consent.authorized", "siwa.sessions.ended", "siwa.consent.revoked", "siwa.consent.authorized",
                "siwa.sessions.ended", "siwa.email.forwarding_disabled", "siwa.email.forwarding_enabled",
                "siwa.account.deleted",
            ]
            #expect(try messages.compactMap { try event($0)["type"]?.string } == expected)
            let addressed = try messages.filter { try event($0)["data"]?["email"]?.string == address }
            #expect(addressed.map(\.id) == messages[5...6].map(\.id))
            #expect(messages.count { $0.body.contains("@") } == 2)
        }
    }

    @Test("siwad endpoints test signs with the latest secret, and what it posts is an event and no change.")
    func testEvents() async throws {
        try await Bench.with { bench in
            try await Changes.publish(1, in: bench.fixture)
            let receiver = try await bench.add("shop")
            let old = try await bench.endpoints("secret", "shop")
            try await bench.endpoints("rotate", "shop", "--now", "--note", "a test")
            try await bench.learn("shop", before: old)
            let log = "SELECT position || ' ' || change_id FROM siwa.change_log"
            let published = try await bench.fixture.texts(log)
            #expect(published.count == 1)
            try await bench.endpoints("test", "shop")
            for type in Self.types { try await bench.endpoints("test", "shop", "--type", type) }
            // What the receiver prints arrives after its responses.
            try await eventually("the messages") { receiver.count == 1 + Self.types.count }
            let messages = try receiver.messages
            #expect(messages.allSatisfy { $0.status == 200 && $0.accepted == [0] && $0.signatures == ["v1"] })
            #expect(messages.allSatisfy { $0.type == "application/json" })
            #expect(try await PythonProgram.problems(messages.map(\.body)) == "")
            #expect(try messages.compactMap { try event($0)["type"]?.string } == ["siwa.endpoint.test"] + Self.types)
            let data = try event(messages[0])["data"]
            #expect(data?["endpoint"]?.string == "shop" && data?["position"] == nil)
            #expect(try await bench.fixture.texts(log) == published)
            #expect(try await bench.fixture.deliveries().isEmpty)
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
