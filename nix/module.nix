# services.imp-server: one hardened unit, fed by /etc/imp/imp.conf.
self:
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.imp-server;
  inherit (lib) mkOption types;

  # One argument as systemd reads it: quoted, with % and $ kept as they are.
  argument =
    value:
    ''"${
      builtins.replaceStrings [ "\\" "\"" "%" "$" ] [ "\\\\" "\\\"" "%%" "$$" ] (toString value)
    }"'';
in
{
  options.services.imp-server = {
    enable = lib.mkEnableOption "the imp LLM inference server";

    package = mkOption {
      type = types.package;
      default = self.packages.${pkgs.stdenv.hostPlatform.system}.imp-server;
      defaultText = lib.literalExpression "imp.packages.\${system}.imp-server";
      description = "The imp-server package to run.";
    };

    model = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "/var/lib/models/gemma-3-270m.gguf";
      description = "A GGUF file, a safetensors folder or a name in the models folder; null for the package's own model.";
    };

    host = mkOption {
      type = types.str;
      default = "127.0.0.1";
      description = "Address to listen on.";
    };

    port = mkOption {
      type = types.port;
      default = 8080;
      description = "TCP port to listen on.";
    };

    openFirewall = mkOption {
      type = types.bool;
      default = false;
      description = "Open the port in the firewall.";
    };

    cuda = mkOption {
      type = types.bool;
      default = false;
      description = "Let the unit reach NVIDIA devices and the driver's libraries.";
    };

    drainSeconds = mkOption {
      type = types.int;
      default = 60;
      description = "How long a stop waits for running generations to end.";
    };

    settings = mkOption {
      type = types.attrsOf (types.attrsOf types.anything);
      default = { };
      example = {
        runtime.max_batch_size = 8;
      };
      description = "Sections and keys of /etc/imp/imp.conf (TOML).";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = cfg.drainSeconds > 0;
        message = "services.imp-server.drainSeconds must be positive";
      }
    ];

    # sections of plain values only, for which JSON's notation is TOML's too
    environment.etc."imp/imp.conf".text =
      lib.generators.toINI
        {
          mkKeyValue = key: value: "${key} = ${builtins.toJSON value}";
        }
        (
          lib.recursiveUpdate {
            server.model_swap_drain_ms = cfg.drainSeconds * 1000;
          } cfg.settings
        );

    networking.firewall.allowedTCPPorts = lib.optional cfg.openFirewall cfg.port;

    systemd.services.imp-server = {
      description = "imp LLM inference server";
      wantedBy = [ "multi-user.target" ];
      wants = [ "network-online.target" ];
      after = [ "network-online.target" ];
      environment = {
        IMP_CACHE_DIR = "%C/imp-server";
        PYTHONUNBUFFERED = "1";
      }
      // lib.optionalAttrs cfg.cuda { LD_LIBRARY_PATH = "${pkgs.addDriverRunpath.driverLink}/lib"; };
      serviceConfig = (import ./unit.nix { inherit (cfg) cuda drainSeconds; }) // {
        ExecStart = lib.concatMapStringsSep " " argument (
          [
            (lib.getExe cfg.package)
            "--host"
            cfg.host
            "--port"
            cfg.port
          ]
          ++ lib.optionals (cfg.model != null) [
            "--model"
            cfg.model
          ]
        );
        # API keys are read again, and the request log is opened again
        ExecReload = "${pkgs.coreutils}/bin/kill -HUP $MAINPID";
      };
    };
  };
}
