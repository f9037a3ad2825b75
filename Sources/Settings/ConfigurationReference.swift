/// The page `deploy/doc/configuration.md`, which `siwad config --markdown` prints.
package enum ConfigurationReference {
    package static let page = introduction + "\n" + SettingKey.allCases.map(row).joined(separator: "\n")

    private static func row(_ key: SettingKey) -> String {
        let (type, defaultText, meaning) = key.declaration
        let usual = defaultText.map { "`\($0)`" } ?? (key.isRequired ? "required" : "none")
        let change = key.isReloadable ? "reload" : "restart"
        return "| `\(key.environmentName)` | \(usual) | \(type.values) | \(change) | \(meaning) |"
    }

    private static let introduction = """
        # Configuration

        This page is generated: change `Sources/Settings`, then run `siwad config --markdown > deploy/doc/configuration.md`.

        ## Where a setting comes from

        The first of these that has a value decides:

        1. the flag, for example `--batch-limit 512`: the variable's name in lower case without `SIWAD_`, with hyphens
           (`SIWAD_SEALING_KEYS` and `SIWAD_APPLICATION_TOKENS` have none);
        2. the environment variable, for example `SIWAD_BATCH_LIMIT=512`; for a secret, its value may be in the file that
           `SIWAD_…_FILE` names instead, and after both comes a credential of systemd;
        3. the file that `--config` names, for example `batch_limit: 512`: the name in lower case without `SIWAD_`;
        4. the default.

        [siwad.yaml](../siwad.yaml) is an example of a file. It is flat YAML, with lines `key: value`, and for a list `key:` with
        lines `- item` below it; or one flat JSON object. An unknown key or a malformed value is an error that names it,
        and siwad exits with 78.

        This prints each setting with the value in force and its source. Passwords are masked:

        ```sh
        siwad config --config deploy/siwad.yaml
        ```

        ## Secrets

        The connection string can hold a password. Put it into a file that only root can read, and pass it to the daemon as the
        credential `database-url`, as [siwad.service](../siwad.service) does with `LoadCredential=`: systemd makes a copy that
        only the daemon can read, and siwad finds it in the directory that systemd names. `LoadCredentialEncrypted=` keeps the
        file encrypted too. Without systemd, name a file that only siwad's user can read in `SIWAD_DATABASE_URL_FILE`. Either
        way, the password is in no environment and in no list of processes. Other users can see a password in
        `--database-url`; siwad warns about it.

        The same applies to the sealing keys, in the credential `sealing-keys` or in `SIWAD_SEALING_KEYS_FILE`. Keep a copy of
        them apart from the backups of the database: without it, the sealed secrets of a restored database are lost. The
        callers' tokens are read in the same way: credential `application-tokens`, or `SIWAD_APPLICATION_TOKENS_FILE`.

        ## Change a setting

        A reload (`systemctl reload siwad`, or SIGHUP) reads the settings again that the table marks with *reload*, and the TLS
        files. A mistake changes nothing and is logged. If other settings have changed, the log names them: they need a restart.

        A reload reads the file of `--config` and the files of secrets. Variables and flags of a running process can't change:
        if a setting is in one of them, as in a container, restart siwad.

        ## Values

        - A duration is a whole number with `ms`, `s`, `m`, `h` or `d`, or several of them: `90s`, `1h30m`.
        - A size is a whole number with `KiB`, `MiB`, `GiB`, `kB`, `MB`, `GB` or no unit, which means bytes.
        - `SIWAD_APPS` names each app group as `TEAMID/primary.app.id`: the ten characters of the developer team and the primary
          App ID. Further client ids of the group, such as the Services ID of your web site, follow after `+`:
          `A1B2C3D4E5/com.example.app+com.example.web,A1B2C3D4E5/com.example.notes`.

        ## The settings

        | variable | default | values | changed by | meaning |
        | --- | --- | --- | --- | --- |
        """
}
