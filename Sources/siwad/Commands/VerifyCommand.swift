import WebClient
import AppleTokens
import ArgumentParser
import Basics
import JOSE
import Settings
import Terminal

struct VerifyCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "verify",
        abstract: "Explain a notification or an identity token, check by check.",
        usage: "siwad verify [<file>] [<options>]",
        discussion: """
            Reads a JWS, or the whole body of a request, and runs the checks of the notification endpoint. The exit \
            code is 1 if a check fails; the checks after it are not run. Without --keys, the key set comes from \
            SIWAD_KEYS_URL. Without SIWAD_APPS, any audience passes.

            With --client-id, it runs the checks of an identity token instead. The file has only the token, or a JSON \
            object with it: what a device gets, a request to sign in, or the answer of Apple's token endpoint. A nonce, \
            code or access token is compared if it is given; @FILE reads it from a file, so that other users can't see it.

            Example:
              siwad verify notification.jws --keys apple-keys.json --at 2022-07-22
              siwad verify identity.jws --client-id com.example.app \\
                  --nonce @nonce --code @code
            """
    )

    @Argument(help: ArgumentHelp("File with the JWS; - for standard input.", valueName: "file"), completion: .file())
    var file = "-"
    @Option(help: ArgumentHelp("Key set, as Apple publishes it.", valueName: "file"), completion: .file())
    var keys: String?
    @Option(parsing: .unconditional, help: WallTime.help("Verify as of this time"), transform: WallTime.init(argument:))
    var at: WallTime?
    @Option(help: ArgumentHelp("Apps accepted, as in SIWAD_APPS.", valueName: "apps"))
    var apps: String?
    @OptionGroup var identity: IdentityOptions
    @Flag(help: "Print one JSON object per check.")
    var json = false
    @OptionGroup var common: CommonOptions

    var flags: [SettingKey: String] { apps.map { [.apps: $0] } ?? [:] }

    /// Refuses a token as an argument: other users of the machine can see the arguments of a process.
    func validate() throws {
        guard !Redaction.holdsToken(file) else {
            throw ValidationError("the token is read from a file or, with -, from standard input, not the command line")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let explanation = try await explanation(invocation.configuration)
        invocation.console.print(explanation, asJSON: json)
        if explanation.isIdentityToken {
            invocation.console.note("--client-id explains it as an identity token")
        }
        if !explanation.isPassed { throw CommandFailure(.failed, "") }
    }

    private func explanation(_ configuration: Configuration) async throws -> Explanation {
        let body = try CommandFile.bytes(file)
        if let client = identity.clientID {
            let (token, expectation) = try identity.attempt(ClientID(client), body: body)
            let policy = IdentityPolicy(
                issuer: configuration.issuer,
                maximumAge: configuration.identityTokenAge,
                leeway: configuration.clockLeeway,
                nonce: identity.nonce == nil ? nil : configuration.noncePolicy
            )
            let keySet = try await keySet(configuration)
            let verifier = IdentityVerifier(policy: policy)
            return Explanation(
                verifier.explain(token: token, expecting: expectation, keys: keySet, now: at ?? .now())
            )
        }
        let token = try token(in: body)
        let keySet = try await keySet(configuration)
        return try Explanation(of: token, configuration) {
            $0.explain(token: token, keys: keySet, now: at ?? .now())
        }
    }

    private func token(in body: [UInt8]) throws -> [UInt8] {
        do throws(Rejection) {
            return try NotificationBody.token(in: body)
        } catch {
            // A body that is neither JSON nor a form is taken for a token: the checks explain what is wrong with it.
            guard error != .malformedBody || Self.isObjectOrForm(body) else { return body }
            throw CommandFailure(.failed, "\(error.rawValue): \(error.detail)")
        }
    }

    private static func isObjectOrForm(_ body: [UInt8]) -> Bool {
        let text = String(decoding: body, as: UTF8.self)
        return text.contains("{") || text.contains("payload")
    }

    private func keySet(_ configuration: Configuration) async throws -> KeySet {
        let bytes: [UInt8]
        if let keys {
            do throws(FileReadingError) {
                bytes = try readFile(atPath: keys)
            } catch {
                throw CommandFailure(.failed, "--keys \(Redaction.redacted(keys)): \(error)")
            }
        } else {
            bytes = try await KeySetFetcher.fetchOnce(try configuration.keySetURL())
        }
        do throws(JOSEError) {
            return KeySet(try JSONWebKeySet(parsing: bytes), fetchedAt: nil)
        } catch {
            let step =
                keys == nil
                ? "check \(SettingKey.keysURL.environmentName)"
                : "pass the keys.json of siwad simulate keys, or a copy of https://appleid.apple.com/auth/keys"
            throw CommandFailure(
                .failed,
                "\(keys.map(Redaction.redacted) ?? configuration.keysURL) is no key set: \(error)",
                nextStep: step
            )
        }
    }
}

/// What the application knows about the attempt to sign in that an identity token must belong to.
struct IdentityOptions: ParsableArguments {
    @Option(
        help: ArgumentHelp("Explain an identity token for this client id.", valueName: "client-id"),
        completion: .clientID
    )
    var clientID: String?
    @Option(parsing: .unconditional, help: ArgumentHelp("Nonce of the attempt, not hashed.", valueName: "text"))
    var nonce: String?
    @Option(
        parsing: .unconditional,
        help: ArgumentHelp("Authorization code that came with the token.", valueName: "text")
    )
    var code: String?
    @Option(parsing: .unconditional, help: ArgumentHelp("Access token of the same answer.", valueName: "text"))
    var accessToken: String?

    func validate() throws {
        let others = [("--nonce", nonce), ("--code", code), ("--access-token", accessToken)].filter { $1 != nil }
        guard clientID != nil || others.isEmpty else {
            throw ValidationError("\(others[0].0) belongs to an identity token: add --client-id")
        }
    }

    /// The token in a file with only it, or in a JSON object, and what it must belong to.
    func attempt(_ client: ClientID, body: [UInt8]) throws -> (token: [UInt8], IdentityExpectation) {
        let (token, object) = try CommandFile.identityToken(in: body)
        let expectation = IdentityExpectation(
            client: client,
            nonce: try nonce.map(CommandFile.value),
            code: try code.map(CommandFile.value),
            accessToken: try accessToken.map(CommandFile.value) ?? object?["access_token"]?.string
        )
        return (token, expectation)
    }
}
