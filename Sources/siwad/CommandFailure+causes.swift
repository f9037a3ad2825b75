import Basics
import Glibc
import JOSE
import Listening
import LocalPostgres
import Postgres
import Settings
import Spool
import Terminal
import WebClient

extension CommandFailure {
    /// The line and the exit code of an error of a part of siwad; nil for an unknown error.
    init?(knownCause error: any Error) {
        switch error {
        case let error as SettingsError:
            let config = nextCommand("config", accepting: SettingKey.allCases)
            self.init(.configuration, error.description(listedBy: config))
        case let error as PostgresError: self.init(postgres: error)
        case let error as ServerError: self.init(server: error)
        case let error as SpoolError:
            let status: CommandStatus = error.code == .failed ? .failed : .configuration
            self.init(status, "\(SettingKey.spoolDirectory.environmentName): \(error)")
        case let error as WebClientError: self.init(appleClient: error)
        case let error as LocalPostgresError: self.init(.unavailable, error.description)
        case let error as JOSEError: self.init(.failed, error.description)
        case let error as FileReadingError: self.init(.failed, error.description)
        case is CancellationError: self.init(.failed, "interrupted")
        default: return nil
        }
    }

    /// Some of several that a command line names do not exist.
    ///
    /// - Parameter list: the command that shows some.
    init(missing: [String], of count: Int, list: String) {
        let names = missing.prefix(3).map { Redaction.redacted($0) } + (missing.count > 3 ? ["…"] : [])
        let what = "\(missing.count) of \(count) named were not found (\(names.joined(separator: ", ")))"
        self.init(.partlyFailed, "\(what): \(list) shows some")
    }

    private init(postgres error: PostgresError) {
        let key = SettingKey.databaseURL.environmentName
        switch (error.code, error.sqlState?.classCode) {
        case (.connectionFailed, "28"):
            self.init(.unavailable, "\(error)", nextStep: "check user and password in \(key)")
        case (.connectionFailed, "3D"):
            self.init(.unavailable, "\(error)", nextStep: "create the database, or correct its name in \(key)")
        case (.connectionFailed, "53"):
            let step = "end connections that pg_stat_activity shows, or raise max_connections or the limit of the role"
            self.init(.unavailable, "\(error)", nextStep: step)
        case (.connectionFailed, _) where error.sqlState?.rawValue == "57P03":
            self.init(.unavailable, "\(error)", nextStep: "PostgreSQL starts, stops or recovers; try again")
        case (.connectionFailed, _), (.connectionLost, _):
            // libpq's question repeats the next step.
            let cause = error.description.split(separator: " Is the server running").first ?? ""
            self.init(.unavailable, "\(cause)", nextStep: "check that PostgreSQL runs there, and \(key)")
        case (.timedOut, _):
            self.init(.unavailable, "\(error)", nextStep: "PostgreSQL is slow or locked; try again")
        case (.usage, _):
            self.init(.configuration, "\(key): \(error)")
        case (.migration, _):
            self.init(.configuration, line: error.description)
        // A missing schema, table, function or column. A failed migration is no reason to migrate.
        case (.server, _)
        where error.migration == nil && ["3F000", "42P01", "42883", "42703"].contains(error.sqlState?.rawValue):
            self.init(.configuration, "the database is not migrated", nextStep: SchemaState.nextStep)
        case (.server, "42") where error.sqlState == .insufficientPrivilege:
            let step =
                "connect as a member of the role siwad_daemon, or of siwad_reader for commands that change nothing and read "
                + "no secrets"
            self.init(.failed, "\(error)", nextStep: step)
        case (.server, "25") where error.sqlState == .readOnlyTransaction:
            let step = "a standby, or a read-only database: name the primary in \(key)"
            self.init(.unavailable, "\(error)", nextStep: step)
        case (.server, "55") where error.sqlState == .lockNotAvailable:
            self.init(.unavailable, "\(error)", nextStep: "another session holds a lock; try again")
        case (.server, "25"), (.server, "53"), (.server, "57"):
            self.init(.unavailable, error.description)
        case (.server, _), (.cancelled, _), (.decoding, _):
            self.init(.failed, error.description)
        }
    }

    private init(server error: ServerError) {
        switch error.code {
        case .addressInUse, .addressUnavailable, .listenFailed:
            // A port can become free, and an address can appear, without a change of the configuration.
            self.init(.failed, line: error.description)
        case .permissionDenied, .invalidAddress, .unreadableCertificate, .keyMismatch, .tooFewOpenFiles:
            self.init(.configuration, line: error.description)
        }
    }

    private init(appleClient error: WebClientError) {
        switch error.code {
        case .invalidURL, .tooLarge: self.init(.configuration, line: error.description)
        case .unreadableFile:
            let step = "check the file, and \(SettingKey.keysURL.environmentName)"
            self.init(.configuration, error.description, nextStep: step)
        case .unreachable, .timedOut, .unexpectedStatus: self.init(.unavailable, line: error.description)
        }
    }
}

extension ListenAddress {
    /// The failure to report if the daemon cannot listen on one of the addresses. An unknown host name is reported in our
    /// words instead of the library's.
    static func failure(_ error: any Error, of addresses: [ListenAddress]) -> any Error {
        // The notification endpoint wraps the error of the library; the other servers pass it on.
        let isUnexplained =
            (error as? ServerError)?.code == .listenFailed
            || !(error is CommandFailure) && CommandFailure(knownCause: error) == nil
        guard isUnexplained else { return error }
        for address in addresses where !address.isHostKnown {
            return CommandFailure(
                .failed,
                "cannot listen on \(address): the host name \(address.host) is not known",
                nextStep: "correct it in \(address.setting), or write an address such as 127.0.0.1"
            )
        }
        return error
    }

    /// Asks the resolver of the system, which blocks the thread.
    private var isHostKnown: Bool {
        var found: UnsafeMutablePointer<addrinfo>?
        let result = getaddrinfo(host, nil, nil, &found)
        if result == 0 { freeaddrinfo(found) }
        return result == 0
    }
}
