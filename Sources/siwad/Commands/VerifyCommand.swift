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
        abstract: "Explain a notification, check by check.",
        usage: "siwad verify [<file>] [<options>]",
        discussion: """
            Reads a JWS, or the whole body of a request, and runs the checks of the notification endpoint. The exit \
            code is 1 if a check fails; the checks after it are not run. Without --keys, the key set comes from \
            SIWAD_KEYS_URL. Without SIWAD_APPS, any audience passes.

            Example:
              siwad verify notification.jws --keys apple-keys.json --at 2022-07-22T12:00:00Z
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
        let token = try token()
        let keySet = try await keySet(invocation.configuration)
        let explanation = try Explanation(of: token, invocation.configuration) {
            $0.explain(token: token, keys: keySet, now: at ?? .now())
        }
        invocation.console.print(explanation, asJSON: json)
        if !explanation.isPassed { throw CommandFailure(.failed, "") }
    }

    private func token() throws -> [UInt8] {
        let body: [UInt8]
        do throws(FileReadingError) {
            body = try readFile(atPath: file)
        } catch {
            throw CommandFailure(.failed, "\(file == "-" ? "standard input" : Redaction.redacted(file)): \(error)")
        }
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
            throw CommandFailure(.failed, "\(keys ?? configuration.keysURL) is no key set: \(error)")
        }
    }
}
