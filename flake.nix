{
  description = "imp-server: an LLM inference server in one hermetic process";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      inherit ((builtins.fromTOML (builtins.readFile ./pyproject.toml))) project;

      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forAll = f: lib.genAttrs systems (system: f nixpkgs.legacyPackages.${system});
      ours = pkgs: self.packages.${pkgs.stdenv.hostPlatform.system};

      # What the package is built from: a change of docs or CI rebuilds nothing.
      source = builtins.path {
        name = "imp-server-source";
        path = ./.;
        filter =
          path: _type:
          let
            below = builtins.substring (builtins.stringLength (toString ./.) + 1) (-1) path;
          in
          builtins.elem (builtins.head (builtins.split "/" below)) [
            "LICENSE"
            "README.md"
            "imp"
            "pyproject.toml"
            "tests"
          ];
      };

      modelFor = pkgs: pkgs.callPackage ./nix/model.nix { };
      packageFor =
        pkgs:
        pkgs.python3Packages.callPackage ./nix/package.nix {
          src = source;
          inherit (project) version;
          model = modelFor pkgs;
        };

      # A machine with the module switched on.
      machine =
        system: settings:
        lib.nixosSystem {
          inherit system;
          modules = [
            self.nixosModules.default
            {
              services.imp-server = {
                enable = true;
              }
              // settings;
              boot.isContainer = true;
              system.stateVersion = "26.05";
            }
          ];
        };
      machineFor = pkgs: machine pkgs.stdenv.hostPlatform.system;
      unitOf =
        pkgs: settings: (machineFor pkgs settings).config.systemd.units."imp-server.service".text;
    in
    {
      overlays.default = final: _prev: { imp-server = packageFor final; };

      packages = forAll (pkgs: {
        default = (ours pkgs).imp-server;

        # the server, with the default model
        imp-server = packageFor pkgs;

        # the default model alone
        model = modelFor pkgs;

        # docker load < result, after `nix build .#image`
        image = pkgs.dockerTools.buildLayeredImage {
          name = "imp-server";
          tag = project.version;
          contents = [ (ours pkgs).imp-server ];
          # the caches of the compiler live in /tmp, the only folder written to
          extraCommands = "mkdir -m 1777 tmp";
          config = {
            Entrypoint = [ (lib.getExe (ours pkgs).imp-server) ];
            Cmd = [
              "--host"
              "0.0.0.0"
            ];
            Env = [ "IMP_CACHE_DIR=/tmp/imp-server" ];
            ExposedPorts."8080/tcp" = { };
            User = "65532:65532";
          };
        };

        # the units, for systemd-analyze and for machines without NixOS
        units =
          pkgs.runCommand "imp-server-units"
            {
              cpu = unitOf pkgs { };
              gpu = unitOf pkgs { cuda = true; };
            }
            ''
              mkdir -p $out/cpu $out/gpu
              printf '%s' "$cpu" > $out/cpu/imp-server.service
              printf '%s' "$gpu" > $out/gpu/imp-server.service
            '';
      });

      apps = forAll (pkgs: {
        default = self.apps.${pkgs.stdenv.hostPlatform.system}.imp-server;
        imp-server = {
          type = "app";
          program = lib.getExe (ours pkgs).imp-server;
          meta.description = "Serve a model on http://127.0.0.1:8080";
        };
      });

      checks = forAll (pkgs: {
        # builds the wheel, imports it and runs the tests without a network
        package = (ours pkgs).imp-server;

        # the module's options reach the firewall, the settings file and the unit
        module =
          let
            inherit
              (
                (machineFor pkgs {
                  port = 9000;
                  openFirewall = true;
                  drainSeconds = 7;
                  model = "/srv/100% \"big\".gguf";
                  settings.kv_cache.max_blocks = 32;
                  settings.server.cors_origins = "";
                }).config
              )
              environment
              networking
              systemd
              ;
            conf = environment.etc."imp/imp.conf".text;
            unit = systemd.units."imp-server.service".text;
            closed = (machineFor pkgs { }).config.networking.firewall.allowedTCPPorts;
            holds = text: part: lib.assertMsg (lib.hasInfix part text) "${text}\nlacks ${part}";
          in
          assert builtins.elem 9000 networking.firewall.allowedTCPPorts;
          assert closed == [ ];
          assert holds conf "[kv_cache]\nmax_blocks = 32\n";
          assert holds conf "model_swap_drain_ms = 7000\n";
          assert holds conf "cors_origins = \"\"\n";
          assert holds unit "\"--port\" \"9000\"";
          assert holds unit ''"--model" "/srv/100%% \"big\".gguf"'';
          assert holds unit "TimeoutStopSec=22";
          assert holds unit "/bin/kill -HUP $MAINPID";
          (ours pkgs).units;
      });

      devShells = forAll (pkgs: {
        default = pkgs.mkShell {
          packages = [
            (pkgs.python3.withPackages (
              ps:
              (ours pkgs).imp-server.pythonDependencies ps
              ++ (ours pkgs).imp-server.pythonTestDependencies ps
              ++ [ ps.mypy ]
            ))
            pkgs.ruff
          ];
          IMP_MODEL = (ours pkgs).model;
        };
      });

      nixosModules.default = import ./nix/module.nix self;
    }
    # the stand-in that CI builds with has no formatter
    // lib.optionalAttrs (nixpkgs.legacyPackages.x86_64-linux ? nixfmt-tree) {
      formatter = forAll (pkgs: pkgs.nixfmt-tree);
    };
}
