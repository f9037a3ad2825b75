import Glibc
import Postgres
import Settings
import Terminal

/// How what other users, other machines and other roles could get at is judged.
extension Finding {
    /// Files that hold a secret; one that isn't there is another check's.
    static func files(_ paths: [String]) -> [Finding] {
        let open = paths.filter { path in
            var status = stat()
            return stat(path, &status) == 0 && status.st_mode & (S_IROTH | S_IWOTH) != 0
        }
        guard !open.isEmpty else { return [.pass(.files, "no file with a secret is open to other users")] }
        return open.map { path in
            let remedy = "run chmod o-rw on it; siwad's own user has to own it, or be in its group"
            return .warn(
                .files,
                "it holds a secret, and every user of this machine can read or change it",
                remedy,
                subject: path
            )
        }
    }

    /// The way to the database.
    static func databaseTLS(_ route: ServerEndpoint) -> Finding {
        if route.isLocal { return .pass(.databaseTLS, "PostgreSQL is on this machine") }
        if route.sslMode == "verify-full" {
            return .pass(.databaseTLS, "sslmode=verify-full: another server can't pass for PostgreSQL")
        }
        return .warn(
            .databaseTLS,
            "PostgreSQL is at \(VisibleText.visible(route.address ?? "")) with sslmode=\(VisibleText.visible(route.sslMode)), so "
                + "another server on the way could pass for it",
            "set sslmode=verify-full in SIWAD_DATABASE_URL, and sslrootcert= to the file of the server's authority"
        )
    }

    /// Who may create functions and operators that other programs' SQL finds first.
    static func publicSchema(isOpen: Bool) -> Finding {
        guard isOpen else { return .pass(.publicSchema, "only chosen roles may create objects in the schema public") }
        return .warn(
            .publicSchema,
            "every role may create objects in the schema public, also functions that other programs call by mistake",
            "run REVOKE CREATE ON SCHEMA public FROM PUBLIC as the owner of the database"
        )
    }

    /// The address of metrics and readiness.
    static func operations(_ address: HostAndPort) -> Finding {
        let digits = address.host.split(separator: ".", omittingEmptySubsequences: false)
        let isLoopback =
            ["localhost", "::1"].contains(address.host)
            || digits.count == 4 && digits[0] == "127" && digits.allSatisfy { UInt8($0) != nil }
        if isLoopback { return .pass(.operations, "\(address) is for this machine only") }
        return .warn(
            .operations,
            "other machines reach metrics and readiness at \(address), without TLS and without a password",
            "set SIWAD_OPERATIONS_LISTEN to a loopback address, or let a firewall pass only those who need it"
        )
    }
}
