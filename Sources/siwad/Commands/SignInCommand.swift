import ArgumentParser
import Basics
import Ingest
import JOSE
import Listening
import Postgres
import Settings
import SignIn
import SignInFlow
import Synchronization
import Telemetry
import Terminal
import WebClient

struct SignInCommand: DatabaseCommand {
    static let configuration = CommandConfiguration(
        commandName: "sign-in",
        abstract: "Sign a person in with what a device got from Apple.",
        usage: "siwad sign-in --client-id <client-id> --token <file> [<options>]",
        discussion: """
            Does what POST /v1/sign-in does, in this process and with the settings of siwad serve; with --to, it sends the \
            request to a running siwad. --request has the whole request, the other options its parts. The values of --code and --nonce can be @FILE, so that other users can't see them. \
            The exit code is 1 if the sign-in is refused, and 69 if it can be repeated later.

            Example:
              siwad sign-in --client-id com.example.app --token identity.jws \\
                  --nonce @nonce --code @code --session s1
            """
    )

    @Option(
        help: ArgumentHelp("Request, as the endpoint takes it; - for standard input.", valueName: "file"),
        completion: .file()
    )
    var request: String?
    @OptionGroup var parts: SignInPartOptions
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("Idempotency key of the attempt, 16 to 128 characters.", valueName: "key")
    )
    var idempotencyKey: String?
    @Option(help: ArgumentHelp("Send it to this siwad: unix:/path, or a URL.", valueName: "address"))
    var to: String?
    @Option(help: ArgumentHelp("File with the token of the caller, for --to.", valueName: "file"), completion: .file())
    var bearer: String?
    @Option(help: ArgumentHelp("Apps, as in SIWAD_APPS.", valueName: "apps"))
    var apps: String?
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var database: DatabaseOptions

    var flags: [SettingKey: String] {
        var flags = database.flags
        flags[.apps] = apps
        return flags
    }

    var defaultLogLevel: LogLevel? { .error }

    func validate() throws {
        guard (request == nil) == (parts.clientID != nil) else {
            throw ValidationError("write --request, or --client-id and the parts of a request")
        }
        guard bearer == nil || to != nil else { throw ValidationError("--bearer belongs to a running siwad: add --to") }
        guard let to else { return }
        do throws(WebClientError) {
            _ = try ApplicationClient(address: to, bearer: nil)
        } catch {
            throw ValidationError("--to: \(error.message)")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let body = try request.map(CommandFile.bytes) ?? parts.body()
        let answer: JSONValue
        if let to {
            let bearer = try bearer.map(Self.token)
            let client = try ApplicationClient(address: to, bearer: bearer)
            let response = try await client.signIn(body, idempotencyKey: idempotencyKey, on: EventLoops.ofCommand.group)
            do throws(JOSEError) {
                answer = try JSONValue(parsing: response.body)
            } catch {
                throw CommandFailure(.failed, "\(to) answers no JSON: it is not siwad's application endpoint")
            }
            guard answer[response.status == 200 ? "sign_in_id" : "reason"]?.string != nil else {
                throw CommandFailure(
                    .failed,
                    "\(to) is not siwad's application endpoint: it answers \(response.status)"
                )
            }
            if response.status != 200 { throw try refused(answer, invocation.console) }
        } else {
            do {
                answer = try JSONValue(parsing: Array(try await signIn(body, invocation.configuration).json.utf8))
            } catch let problem as Problem {
                throw try refused(try JSONValue(parsing: Array(problem.json.utf8)), invocation.console)
            }
        }
        invocation.console.print(
            lines: json ? [answer.compactText] : SignInPage(answer).lines(invocation.console.style)
        )
    }

    /// Reads the token of a caller.
    private static func token(inFile path: String) throws -> String {
        let bytes = try CommandFile.trimmed(path)
        guard bytes.allSatisfy({ 0x21...0x7E ~= $0 }) else {
            let name = VisibleText.visible(path)
            throw CommandFailure(
                .failed,
                "\(name) has more than a token: keep the first line of siwad application-token"
            )
        }
        return String(decoding: bytes, as: UTF8.self)
    }

    /// Prints a refusal with `--json`, and returns the failure.
    private func refused(_ problem: JSONValue, _ console: Console) throws -> CommandFailure {
        let canBeRepeated = problem["action"]?.string == "retry"
        if json { console.print(problem.compactText) }
        let reason = problem["reason"]?.string ?? problem["title"]?.string ?? "refused"
        let detail = problem["detail"]?.string ?? ""
        return CommandFailure(
            canBeRepeated ? .unavailable : .failed,
            json ? "" : "\(reason): \(VisibleText.visible(detail))"
        )
    }

    /// Signs in in this process.
    private func signIn(_ body: [UInt8], _ configuration: Configuration) async throws -> SignInAnswer {
        let request = try SignInRequest(parsing: body, idempotencyKey: idempotencyKey)
        let pool = ConnectionPool(try configuration.connectionSettings(), maximum: 2)
        return try await withCleanup(pool.close) {
            let loops = EventLoops.ofCommand
            let metrics = SiwadMetrics(version: Version.current, appIDs: [])
            let log = Log(label: "siwad")
            let keys = KeyRing(
                refresh: configuration.keysRefresh,
                floor: configuration.keysRefreshFloor,
                source: .init(
                    fetcher: KeySetFetcher(
                        url: try configuration.keySetURL(),
                        version: Version.current,
                        eventLoopGroup: loops.group
                    ),
                    trust: try configuration.keyTrust(),
                    pool: pool
                ),
                metrics: metrics,
                log: log
            )
            let refusal = DatabaseRefusal()
            let parts = try SignInParts(
                configuration,
                keys: keys,
                pool: pool,
                metrics: metrics.registry,
                log: log,
                eventLoopGroup: loops.group,
                onDatabaseError: { refusal.record($0) }
            )
            return try await withCleanup(parts.close) {
                try await SchemaState.read(pool).check()
                async let ring: Void = keys.run()
                let result: Result<SignInAnswer, Problem>
                do throws(Problem) {
                    result = .success(try await parts.service.signIn(request, by: nil))
                } catch {
                    result = .failure(error)
                }
                keys.stop()
                await ring
                do throws(Problem) {
                    return try result.get()
                } catch {
                    if error.reason == .databaseUnavailable, let cause = refusal.error { throw cause }
                    throw error
                }
            }
        }
    }
}

/// The last error with which the database refused a login or a right. The problem `database-unavailable` hides it from
/// callers and asks them to repeat the request, but only the operator can remove its cause.
private final class DatabaseRefusal: Sendable {
    private let state = Mutex<PostgresError?>(nil)

    var error: PostgresError? { state.withLock { $0 } }

    /// Ignores other errors.
    func record(_ error: PostgresError) {
        guard error.sqlState == .insufficientPrivilege || error.sqlState?.classCode == "28" else { return }
        state.withLock { $0 = error }
    }
}

/// The parts of a request as options.
struct SignInPartOptions: ParsableArguments {
    @Option(help: ArgumentHelp("Client id, one of SIWAD_APPS.", valueName: "client-id"), completion: .clientID)
    var clientID: String?
    @Option(
        help: ArgumentHelp(
            "File with the identity token, or with what the device got; - for standard input.",
            valueName: "file"
        ),
        completion: .file()
    )
    var token: String?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("Authorization code that came with the token.", valueName: "text")
    )
    var code: String?
    @Option(parsing: .unconditional, help: ArgumentHelp("Nonce of the attempt, not hashed.", valueName: "text"))
    var nonce: String?
    @Option(help: ArgumentHelp("Redirect URI of the authorization request, if it had one.", valueName: "url"))
    var redirectURI: String?
    @Option(help: ArgumentHelp("File with Apple's object about the user.", valueName: "file"), completion: .file())
    var user: String?
    @Option(parsing: .unconditional, help: ArgumentHelp("Id of the session to open.", valueName: "id"))
    var session: String?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("How long the session lives, such as 30d (default: for ever).", valueName: "duration"),
        transform: { text in
            guard let time = Duration(short: text), time >= .seconds(1) else {
                throw ValidationError("write a duration such as 30d")
            }
            return time
        }
    )
    var expiresIn: Duration?

    func validate() throws {
        if session == nil, expiresIn != nil {
            throw ValidationError("--expires-in belongs to a session: add --session")
        }
        let parts = [token, code, nonce, redirectURI, user, session]
        guard clientID != nil || parts.allSatisfy({ $0 == nil }) else {
            throw ValidationError("add --client-id, or put these parts into the file of --request")
        }
        guard clientID == nil || token != nil || code != nil else { throw ValidationError("add --token or --code") }
    }

    /// The request as the endpoint takes it.
    func body() throws -> [UInt8] {
        var members: [JSONValue.Member] = []
        func add(_ name: String, _ text: String?) {
            if let text { members.append(.init(name, .string(text))) }
        }
        add("client_id", clientID)
        let token = try token.map { try CommandFile.identityToken(in: CommandFile.bytes($0)).token }
        add("identity_token", token.map { String(decoding: $0, as: UTF8.self) })
        add("authorization_code", try code.map(CommandFile.value))
        add("nonce", try nonce.map(CommandFile.value))
        add("redirect_uri", redirectURI)
        add("user", try user.map { String(decoding: try CommandFile.bytes($0), as: UTF8.self) })
        if let session {
            let expiry = expiresIn.map { JSONValue.Member("expires_in", .number(JSONNumber($0.components.seconds))) }
            members.append(.init("session", .object([.init("id", .string(session))] + [expiry].compactMap(\.self))))
        }
        return Array(JSONValue.object(members).compactText.utf8)
    }
}

/// Files that options name.
enum CommandFile {
    static func bytes(_ path: String) throws(CommandFailure) -> [UInt8] {
        do throws(FileReadingError) {
            return try readFile(atPath: path)
        } catch {
            throw CommandFailure(.failed, "\(path == "-" ? "standard input" : Redaction.redacted(path)): \(error)")
        }
    }

    static func trimmed(_ path: String) throws(CommandFailure) -> ArraySlice<UInt8> {
        try bytes(path).trimmed { $0 <= UInt8(ascii: " ") }
    }

    /// The value of an option, or the content of the file that it names as `@FILE`.
    static func value(_ text: String) throws(CommandFailure) -> String {
        guard text.hasPrefix("@") else { return text }
        return String(decoding: try trimmed(String(text.dropFirst())), as: UTF8.self)
    }

    /// The identity token of a file that has only the token, or a JSON object with it, and this object.
    static func identityToken(in body: [UInt8]) throws(CommandFailure) -> (token: [UInt8], object: JSONValue?) {
        // What is not JSON is taken for a token: its checks explain what is wrong with it.
        guard let object = try? JSONValue(parsing: body), object.kind == .object else {
            return (Array(body.trimmed { $0 <= UInt8(ascii: " ") }), nil)
        }
        // The token's name in Apple's response, in a request to siwad, and in what a device gets.
        let texts = ["id_token", "identity_token", "identityToken"].compactMap { object[$0]?.string }
        guard let text = texts.first else {
            throw CommandFailure(.failed, "the JSON object has no member id_token, identity_token or identityToken")
        }
        return (Array(text.utf8), object)
    }
}

/// A sign-in for a reader.
private struct SignInPage {
    private let answer: JSONValue

    init(_ answer: JSONValue) { self.answer = answer }

    func lines(_ style: OutputStyle) -> [String] {
        func text(_ path: String...) -> String {
            let value = path.reduce(Optional(answer)) { $0?[$1] }
            return VisibleText.visible(value?.string ?? "none")
        }
        func isTrue(_ path: String...) -> Bool { path.reduce(Optional(answer)) { $0?[$1] } == .boolean(true) }
        let name = [answer["name"]?["given"]?.string, answer["name"]?["family"]?.string].compactMap(\.self)
        let forwarding = isTrue("email", "private") ? " (relay)" : ""
        let title = isTrue("repeated") ? "sign-in \(text("sign_in_id")), repeated" : "sign-in \(text("sign_in_id"))"
        let facts = [
            ("person", "\(text("account", "sub")) in team \(text("account", "team_id"))"),
            ("account", text("account", "id") + (isTrue("new_account") ? ", new" : "")),
            ("app", text("account", "app_id")),
            ("name", name.isEmpty ? "none" : VisibleText.visible(name.joined(separator: " "))),
            ("email", text("email", "address") + forwarding),
            ("refresh token", text("refresh_token")), ("session", text("session", "id")),
        ]
        return [style.painted(title, .bold)] + style.facts(facts, nameWidth: 15)
    }
}
