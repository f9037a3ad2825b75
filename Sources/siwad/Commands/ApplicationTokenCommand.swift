import AppleTokens
import ArgumentParser
import Basics
import JOSE
import SignIn
import Terminal

struct ApplicationTokenCommand: Command {
    static let configuration = CommandConfiguration(
        commandName: "application-token",
        abstract: "Print a token for a backend, and its line for SIWAD_APPLICATION_TOKENS.",
        usage: "siwad application-token <name> [<options>]",
        discussion: """
            The token is shown once and stored nowhere; the line has its SHA-256 only. The backend sends the token as \
            Authorization: Bearer. To replace a token, add the new line, reload siwad, give the backend its token, and \
            remove the old line.

            Example:
              siwad application-token shop --client-id com.example.app
            """
    )

    @Argument(help: "Name of the backend, for the log.")
    var name: String
    @Option(
        name: [.customLong("client-id"), .customLong("client")],
        parsing: .singleValue,
        help: ArgumentHelp("Client id that it may act for; repeatable (default: all).", valueName: "client-id"),
        completion: .clientID
    )
    var clientIDs: [String] = []
    @Flag(help: "Print one JSON object.")
    var json = false
    @OptionGroup var common: CommonOptions

    /// Its output may become the value of a setting.
    var needsSettings: Bool { false }

    func validate() throws {
        guard SealingKeys.isName(name) else {
            throw ValidationError("the name has 1 to 64 letters, digits, hyphens, dots and underscores")
        }
        guard clientIDs.allSatisfy({ !$0.isEmpty && !$0.contains { $0.isWhitespace || $0 == "," } }) else {
            throw ValidationError("--client-id is one client id, such as com.example.app")
        }
    }

    func run(_ invocation: Invocation) async throws {
        let token = Base64URL.encode(try SecureRandom.bytes(32))
        let digest = SHA256.digest(Array(token.utf8).span)
        let hexadecimal = digest.hexadecimal
        let line = ([name, hexadecimal] + clientIDs).joined(separator: " ")
        let console = invocation.console
        guard !json else {
            let members: [JSONText.Member] = [
                .init("name", name.json), .init("client_ids", .array(clientIDs.map(\.json))),
                .init("token", token.json), .init("line", line.json),
            ]
            return console.print(JSONText.object(members).line)
        }
        console.print(token)
        console.print(line)
        console.note("the first line is the token for \(name), the second belongs into SIWAD_APPLICATION_TOKENS")
    }
}
