import AccountStore
import AppleTokens
import Listening
import Postgres
import Settings
import WebClient

protocol DaemonCommand: Command {
    var options: DaemonOptions { get }
}

extension DaemonCommand {
    var flags: [SettingKey: String] { options.flags }
}

protocol DatabaseCommand: Command {
    var database: DatabaseOptions { get }
}

extension DatabaseCommand {
    var common: CommonOptions { database.common }
    var flags: [SettingKey: String] { database.flags }
}

protocol ListingCommand: DatabaseCommand, Sendable {
    associatedtype Row: Sendable

    var listing: ListingOptions { get }

    /// - Throws: `CommandFailure`, or `PostgresError`.
    func rows(in session: borrowing Session) throws -> Listing<Row>
}

extension ListingCommand {
    var database: DatabaseOptions { listing.database }

    func run(_ invocation: Invocation) async throws { try await printRows(invocation) }

    func printRows(_ invocation: Invocation) async throws {
        let command = self
        let rows = try await invocation.read { try command.rows(in: $0) }
        try rows.print(listing, to: invocation.console)
    }
}

// MARK: - Settings as parameters

extension Configuration {
    private static let missingDatabase =
        "no database is configured: set SIWAD_DATABASE_URL, for example to postgres://siwad@localhost/siwa"
    private static let missingApps =
        "no apps are configured: set SIWAD_APPS to TEAMID/primary.app.id, for example A1B2C3D4E5/com.example.app"

    /// Both, for commands that need both.
    ///
    /// - Throws: `SettingsError`, which names everything that is missing.
    func databaseAndApps() throws -> (ConnectionSettings, AudienceMap) {
        guard database != .notConfigured || apps != nil else {
            throw SettingsError("\(Self.missingDatabase); \(Self.missingApps)")
        }
        return (try connectionSettings(), try audiences())
    }

    /// - Throws: `SettingsError` if no database is configured, or if libpq can't parse its URL.
    func connectionSettings() throws -> ConnectionSettings {
        let conninfo: String?
        switch database {
        case .conninfo(let text): conninfo = text
        case .libpqEnvironment: conninfo = nil
        case .notConfigured: throw SettingsError(Self.missingDatabase)
        }
        do throws(PostgresError) {
            return try ConnectionSettings(conninfo: conninfo, applicationName: "siwad")
        } catch {
            throw problem(.databaseURL, "\(error): write a libpq URI such as postgres://siwad@localhost/siwa")
        }
    }

    func audiences() throws(SettingsError) -> AudienceMap {
        guard let apps else { throw SettingsError(Self.missingApps) }
        return apps
    }

    func keySetURL() throws(SettingsError) -> KeySetURL {
        do throws(WebClientError) {
            return try KeySetURL(parsing: keysURL)
        } catch {
            throw problem(.keysURL, error.description)
        }
    }

    func appleBase() throws(SettingsError) -> AppleURL {
        do throws(WebClientError) {
            return try AppleURL(parsing: appleURL)
        } catch {
            throw problem(.appleURL, error.description)
        }
    }

    func keyTrust() throws(SettingsError) -> SigningKeys.Trust {
        SigningKeys.Trust(url: try keySetURL().description, maximumAge: keysMaximumAge)
    }

    func policy() throws(SettingsError) -> NotificationPolicy {
        NotificationPolicy(issuer: issuer, audiences: try audiences(), leeway: clockLeeway)
    }

    var notificationAddress: ListenAddress { address(listen, .listen) }
    var operationsAddress: ListenAddress { address(operationsListen, .operationsListen) }

    private func address(_ address: HostAndPort, _ key: SettingKey) -> ListenAddress {
        ListenAddress(host: address.host, port: address.port, setting: name(of: key))
    }
}

// MARK: - Event loops

extension EventLoops {
    /// The thread for the network I/O of a command. It ends with the process, because closed connections may still have work
    /// for it, and NIO reports an error if it has been shut down by then.
    static let ofCommand = EventLoops.start(count: 1)
}

extension KeySetFetcher {
    static func fetchOnce(_ url: KeySetURL) async throws(WebClientError) -> [UInt8] {
        let loops = EventLoops.ofCommand.group
        return try await KeySetFetcher(url: url, version: Version.current, eventLoopGroup: loops).fetch()
    }
}
