import AppleSimulator
import AppleTokens
import ArgumentParser
import Basics
import JOSE
import Listening
import Settings
import Telemetry
import Terminal
import WebClient
import WebServer

struct SimulateAppleCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "apple",
        abstract: "Serve a local Apple for sign-in: keys, tokens and revocation.",
        usage: "siwad simulate apple --key <file> [<options>]",
        discussion: """
            Codes, tokens and people are kept in memory. With SIWAD_APPS, only its client ids are registered, and their \
            team must sign the client secrets. The signatures are verified if --client-key names the keys, as they are \
            named in SIWAD_APPLE_KEYS; else everything but the signature is.

            Example:
              siwad simulate apple --key apple/key.pem \\
                  --notify http://127.0.0.1:8080/apple/notifications
              siwad simulate apple --key apple/key.pem \\
                  --client-key A1B2C3D4E5/KEY1234567=key.p8
              siwad simulate sign-in --client-id com.example.app
            """
    )

    @Option(help: ArgumentHelp("Private key, as simulate keys writes it.", valueName: "file"), completion: .file())
    var key: String
    @Option(help: ArgumentHelp("Loopback address to listen on.", valueName: "host:port"))
    var listen = "127.0.0.1:8090"
    @Option(help: ArgumentHelp("Endpoint that gets the notifications.", valueName: "url"))
    var notify: String?
    @Option(help: ArgumentHelp("Registered apps, as in SIWAD_APPS.", valueName: "apps"))
    var apps: String?
    @Option(
        help: ArgumentHelp(
            "TEAMID/KEYID=FILE of a key that signs client secrets: a .p8 or a public PEM file. May be repeated.",
            valueName: "key"
        )
    )
    var clientKey: [String] = []
    @Flag(help: "Refuse redirect URIs that Apple does not register: http:, IP addresses and localhost.")
    var strict = false
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { apps.map { [.apps: $0] } ?? [:] }

    func run(_ invocation: Invocation) async throws {
        let apple = try KeyFiles.apple(keyFile: key, issuer: invocation.configuration.issuer)
        let address = try ListenAddress(parsing: listen, setting: "--listen")
        guard (try? AppleURL(parsing: "http://\(address)")) != nil else {
            throw CommandFailure(
                .usage,
                "--listen \(address) is no loopback address: clients trust the tokens of this server, so use 127.0.0.1 or ::1"
            )
        }
        let clients = invocation.configuration.apps?.groups.flatMap { group in
            group.clients.map {
                TokenServer.Client(id: $0.rawValue, team: group.team.rawValue, app: group.app.rawValue)
            }
        }
        let keys = try clientKeys()
        let check = ClientSecretCheck(keys: keys)
        let server = TokenServer(
            apple: apple,
            others: try SimulatedApple.others(),
            clients: clients,
            secrets: check,
            isStrict: strict
        )
        let secrets =
            keys.isEmpty
            ? "Signatures of client secrets are not verified: --client-key names their keys."
            : "Client secrets must be signed by \(keys.map(\.id).joined(separator: ", "))."
        let log = Log(label: "siwad")
        let (console, notify) = (invocation.console, notify)
        let loops = EventLoops.ofCommand
        let sender: NotificationSender?
        do {
            sender = try notify.map {
                try NotificationSender(url: $0, version: Version.current, eventLoopGroup: loops.group)
            }
        } catch {
            throw CommandFailure(.usage, "--notify: \(error)")
        }
        let local = LocalApple(server, notifying: sender)
        let service = NamedService("simulated Apple") {
            try await SimulatedAppleServer.run(
                address: address,
                eventLoops: loops,
                log: log,
                onRunning: { port in
                    let bound = ListenAddress(host: address.host, port: port)
                    console.print("http://\(bound)  kid \(apple.keyID), until Ctrl-C")
                    console.print(secrets)
                },
                answer: local.answer
            )
        }
        do {
            try await Services.run(Services.group([service], grace: .seconds(1), log: log), log: log)
        } catch {
            throw ListenAddress.failure(error, of: [address])
        }
    }

    private func clientKeys() throws -> [ClientSecretCheck.Key] {
        guard !clientKey.isEmpty else { return [] }
        do {
            return try AppleKeys(parsing: clientKey.joined(separator: ",")).entries.map { entry in
                ClientSecretCheck.Key(
                    team: entry.team.rawValue,
                    app: entry.app?.rawValue,
                    id: entry.keyID,
                    publicKey: try AppleKeyFile.readPublicHalf(entry)
                )
            }
        } catch let error as AppleKeysError {
            throw CommandFailure(.usage, "--client-key: \(error)")
        } catch {
            throw CommandFailure(.failed, "--client-key \(error)")
        }
    }
}

extension AppleKeyFile {
    /// Reads a public key as PEM, or the public half of the private key in the file.
    fileprivate static func readPublicHalf(_ entry: AppleKeys.Entry) throws(AppleKeyFileError) -> P256PublicKey {
        // A file that can't be read is reported below.
        if let text = try? readFile(atPath: entry.file),
            let key = try? P256PublicKey(pem: String(decoding: text, as: UTF8.self))
        {
            return key
        }
        return try read(entry).publicKey
    }
}

// MARK: - Control

/// The options of the commands that control a simulated Apple.
struct LocalAppleOptions: ParsableArguments {
    @Option(
        name: .customLong("apple-url"),
        help: ArgumentHelp(
            "The simulated Apple (default: SIWAD_APPLE_URL, or http://127.0.0.1:8090).",
            valueName: "url"
        )
    )
    var appleURL: String?
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { appleURL.map { [.appleURL: $0] } ?? [:] }

    /// Sends a control request.
    ///
    /// - Returns: the response: one JSON object.
    func perform(
        _ control: TokenServer.Control,
        _ members: [(String, JSONText?)],
        _ invocation: Invocation
    ) async throws -> String {
        let configuration = invocation.configuration
        let isUnset = configuration.origin(of: .appleURL) == .unset
        let url = isUnset ? try AppleURL(parsing: "http://127.0.0.1:8090") : try configuration.appleBase()
        guard url.isUnencrypted else {
            throw CommandFailure(
                .usage,
                "\(url) is not simulated: name the address of siwad simulate apple with --apple-url or SIWAD_APPLE_URL"
            )
        }
        let object = JSONText.object(members.compactMap { name, value in value.map { .init(name, $0) } })
        let answer: LocalProbe.Response
        do throws(WebClientError) {
            answer = try await LocalProbe.post(
                "\(url)/simulator/\(control.rawValue)",
                json: object.line,
                version: Version.current,
                eventLoopGroup: EventLoops.ofCommand.group
            )
        } catch {
            guard error.code == .unreachable else { throw error }
            let step = "start siwad dev or siwad simulate apple, or correct --apple-url"
            throw CommandFailure(.unavailable, line: "\(error); \(step)")
        }
        guard answer.status == 200 else {
            let cause = (try? JSONValue(parsing: Array(answer.body.utf8)))?["error"]?.string
            throw CommandFailure(.failed, cause ?? "\(url) answered \(answer.status): it is no siwad simulate apple")
        }
        return answer.body
    }
}

protocol LocalAppleCommand: Command {
    var local: LocalAppleOptions { get }
}

extension LocalAppleCommand {
    var common: CommonOptions { local.common }
    var flags: [SettingKey: String] { local.flags }
}

struct SimulateSignInCommand: LocalAppleCommand {
    static let configuration = CommandConfiguration(
        commandName: "sign-in",
        abstract: "Sign a person in at the simulated Apple, and print what a device gets.",
        usage: "siwad simulate sign-in [<options>]",
        discussion: """
            Prints one JSON object with identityToken, authorizationCode, and user at the first sign-in. With --request, \
            it is the request that a backend then sends to siwad: with a nonce, and a new session.

            Example:
              siwad simulate sign-in --client-id com.example.app --nonce 8sIbo1Vd
              siwad simulate sign-in --client-id com.example.app --request >request.json
            """
    )

    @Option(help: "The person; who is not known is made.")
    var person: String?
    @Option(help: ArgumentHelp("The app (default: the only registered one).", valueName: "client-id"))
    var clientID: String?
    @Option(parsing: .unconditional, help: "The claim nonce.")
    var nonce: String?
    @Option(help: ArgumentHelp("Bind the code to this URI, as on the web.", valueName: "url"))
    var redirectURI: String?
    @Option(parsing: .unconditional, help: ArgumentHelp("How long ago, in seconds.", valueName: "seconds"))
    var age: Int64?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("0 unsupported, 1 unknown, 2 likely real.", valueName: "number")
    )
    var realUserStatus: Int64?
    @Flag(help: "Hide the address at the first sign-in.")
    var hideEmail = false
    @Flag(help: "Print the request of a backend to siwad; it needs --client-id.")
    var request = false
    @OptionGroup var local: LocalAppleOptions

    func validate() throws {
        if request, clientID == nil { throw ValidationError("--request needs --client-id") }
        let numbers: [(String, Int64?, last: Int64)] = [
            ("--age", age, 1_000_000_000), ("--real-user-status", realUserStatus, 2),
        ]
        for (name, number, last) in numbers {
            guard number.map({ 0...last ~= $0 }) ?? true else {
                throw ValidationError("\(name) must be from 0 to \(last)")
            }
        }
    }

    func run(_ invocation: Invocation) async throws {
        let nonce = nonce ?? (request ? SimulatedEvent.randomID() : nil)
        let device = try await local.perform(
            .signIn,
            [
                ("person", person.map(JSONText.string)), ("client_id", clientID.map(JSONText.string)),
                ("nonce", nonce.map(JSONText.string)), ("redirect_uri", redirectURI.map(JSONText.string)),
                ("age", age.map(JSONText.integer)), ("real_user_status", realUserStatus.map(JSONText.integer)),
                ("hide_email", hideEmail ? .bool(true) : nil),
            ],
            invocation
        )
        invocation.console.print(request ? try backendRequest(device, nonce) : device)
    }

    private func backendRequest(_ device: String, _ nonce: String?) throws -> String {
        let device = try JSONValue(parsing: Array(device.utf8))
        let session = JSONValue.object([
            .init("id", .string(SimulatedEvent.randomID())), .init("expires_in", .number(JSONNumber(86_400))),
        ])
        return JSONValue.object([
            .init("client_id", clientID.map(JSONValue.string) ?? .null),
            .init("identity_token", device["identityToken"] ?? .null),
            .init("authorization_code", device["authorizationCode"] ?? .null),
            .init("nonce", nonce.map(JSONValue.string) ?? .null),
            .init("redirect_uri", redirectURI.map(JSONValue.string) ?? .null), .init("user", device["user"] ?? .null),
            .init("session", session),
        ]).compactText
    }
}

struct SimulatePersonCommand: LocalAppleCommand {
    enum Action: String, CaseIterable, ExpressibleByArgument {
        case stopUsing = "stop-using"
        case deleteAccount = "delete-account"
        case forwardingOn = "forwarding-on"
        case forwardingOff = "forwarding-off"
        case changePassword = "change-password"

        var control: TokenServer.Control {
            switch self {
            case .stopUsing: .stopUsing
            case .deleteAccount: .deleteAccount
            case .forwardingOn, .forwardingOff: .forwarding
            case .changePassword: .changePassword
            }
        }

        /// The member `on` of the request.
        var isOn: Bool? {
            switch self {
            case .forwardingOn: true
            case .forwardingOff: false
            case .stopUsing, .deleteAccount, .changePassword: nil
            }
        }
    }

    static let configuration = CommandConfiguration(
        commandName: "person",
        abstract: "Let a person of the simulated Apple change something.",
        usage: "siwad simulate person <action> [<options>]",
        discussion: """
            Prints one JSON object. Its member notifications has the status with which each notification was answered; null \
            if it was lost.

            Example:
              siwad simulate person stop-using --client-id com.example.app
            """
    )

    @Argument(help: "stop-using, delete-account, forwarding-on, forwarding-off or change-password.")
    var action: Action
    @Option(help: "The person (default: ada).")
    var person: String?
    @Option(help: ArgumentHelp("The app of stop-using (default: the only registered one).", valueName: "client-id"))
    var clientID: String?
    @OptionGroup var local: LocalAppleOptions

    func run(_ invocation: Invocation) async throws {
        let answer = try await local.perform(
            action.control,
            [
                ("person", person.map(JSONText.string)), ("client_id", clientID.map(JSONText.string)),
                ("on", action.isOn.map(JSONText.bool)),
            ],
            invocation
        )
        invocation.console.print(answer)
    }
}
