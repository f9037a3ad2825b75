import FoundationEssentials
import Glibc

/// The owner and mode of a file, directory or symbolic link, and whether other users can change it.
struct FileTrust {
    let owner: uid_t
    let mode: mode_t

    var isOwnedByRoot: Bool { owner == 0 }

    /// The reason why users other than `user` and root can change it; nil if they can't.
    func problem(for user: uid_t) -> String? {
        if owner != user { return "it belongs to user id \(owner) and siwad runs as \(user)" }
        return mode & 0o022 == 0 ? nil : "others can write it"
    }

    /// The reason why users other than `user` and root can replace an entry of this directory; nil if they can't.
    func problemAsParent(for user: uid_t) -> String? {
        // In a sticky directory such as /tmp, users can rename only their own files.
        if isOwnedByRoot { return mode & 0o022 == 0 || mode & S_ISVTX != 0 ? nil : "others can write it" }
        return problem(for: user)
    }

    /// The reason why users other than `user` and root could have made this symbolic link; nil if they can't. Its mode has
    /// no meaning.
    func problemAsLink(for user: uid_t) -> String? {
        isOwnedByRoot || owner == user ? nil : "it belongs to user id \(owner) and siwad runs as \(user)"
    }
}

extension FileTrust {
    init(_ status: stat) {
        self.init(owner: status.st_uid, mode: status.st_mode)
    }
}

enum TrustedPath {
    /// Resolves all symbolic links in a path. The last component need not exist.
    ///
    /// - Throws: `unusable` if a user other than `user` and root can change what the path leads to: through a symbolic link,
    ///   or through a parent of a link or of the directory, up to the first parent that root owns.
    static func resolve(_ path: String, for user: uid_t) throws(SpoolError) -> String {
        let absolute = path.hasPrefix("/") ? path : FileManager.default.currentDirectoryPath + "/" + path
        var rest = components(absolute)[...]
        var resolved: [String] = []
        var links = 0
        while let name = rest.popFirst() {
            if name == ".." {
                _ = resolved.popLast()
                continue
            }
            let place = text(resolved + [name])
            var status = stat()
            let isThere = lstat(place, &status) == 0
            guard isThere || errno == ENOENT && rest.isEmpty else { throw unreadable(place, in: path) }
            guard isThere, status.st_mode & S_IFMT == S_IFLNK else {
                resolved.append(name)
                continue
            }
            links += 1
            if let problem = FileTrust(status).problemAsLink(for: user) {
                let advice = "name the directory itself, or replace the link"
                throw .unusable(path, "others can change the symbolic link \(place) (\(problem)); \(advice)")
            }
            try checkParents(of: resolved, in: path, for: user)
            // As many as Linux follows, path_resolution(7).
            guard links <= 40, let target = try? FileManager.default.destinationOfSymbolicLink(atPath: place) else {
                throw unreadable(place, in: path)
            }
            rest = components(target) + rest
            if target.hasPrefix("/") { resolved = [] }
        }
        try checkParents(of: Array(resolved.dropLast()), in: path, for: user)
        return text(resolved)
    }

    /// Checks a directory and its parents, up to the first one that root owns.
    private static func checkParents(of directory: [String], in path: String, for user: uid_t) throws(SpoolError) {
        var parent = directory
        while true {
            var status = stat()
            guard stat(text(parent), &status) == 0 else { throw unreadable(text(parent), in: path) }
            if let problem = FileTrust(status).problemAsParent(for: user) {
                let advice = "change that (chmod go-w, chown), or name another directory"
                throw .unusable(path, "others can replace it through \(text(parent)) (\(problem)); \(advice)")
            }
            guard !FileTrust(status).isOwnedByRoot, parent.popLast() != nil else { return }
        }
    }

    private static func unreadable(_ place: String, in path: String) -> SpoolError {
        .unusable(path, "\(place) can't be read (\(systemError())); create it, or name another directory")
    }

    private static func components(_ path: String) -> [String] {
        path.split(separator: "/").filter { $0 != "." }.map(String.init)
    }

    private static func text(_ components: [String]) -> String { "/" + components.joined(separator: "/") }
}

func systemError() -> String { String(cString: strerror(errno)) }
