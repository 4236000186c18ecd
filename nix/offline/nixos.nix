# nixpkgs.lib.nixosSystem for one module: any option may be set, and services are written out as the units systemd reads.
lib:
{ system, modules }:
let
  inherit (lib) mapAttrsToList mkOption types;
  inherit (builtins) concatStringsSep isList toString;

  show =
    value:
    if value == true then
      "true"
    else if value == false then
      "false"
    else
      toString value;
  line =
    key: value: if isList value then lib.concatMapStringsSep "" (line key) value else "${key}=${show value}\n";
  section = name: pairs: "[${name}]\n" + concatStringsSep "" (mapAttrsToList line pairs);
  unit =
    service:
    concatStringsSep "\n" [
      (section "Unit" {
        Description = service.description;
        After = concatStringsSep " " service.after;
        Wants = concatStringsSep " " service.wants;
      })
      (section "Service" (
        {
          Environment = mapAttrsToList (name: value: "\"${name}=${value}\"") service.environment;
        }
        // service.serviceConfig
      ))
      (section "Install" { WantedBy = concatStringsSep " " service.wantedBy; })
    ];

  base =
    { config, ... }:
    {
      freeformType = types.anything;
      options = {
        assertions = mkOption {
          type = types.listOf types.anything;
          default = [ ];
        };
        systemd.services = mkOption { type = types.attrsOf types.anything; };
        systemd.units = mkOption { type = types.attrsOf types.anything; };
        networking.firewall.allowedTCPPorts = mkOption {
          type = types.listOf types.port;
          default = [ ];
        };
        environment.etc = mkOption { type = types.attrsOf types.anything; };
      };
      config.systemd.units = builtins.listToAttrs (
        mapAttrsToList (name: service: {
          name = "${name}.service";
          value.text = unit service;
        }) config.systemd.services
      );
    };

  result = lib.evalModules {
    modules = [ base ] ++ modules;
    specialArgs = {
      inherit lib;
      pkgs = import ./. { inherit system; };
    };
  };
  failed = builtins.filter (a: !a.assertion) result.config.assertions;
in
if failed == [ ] then result else throw (lib.concatMapStringsSep "\n" (a: a.message) failed)
